// The one door to the vendored libraries: Preact draws, htm writes templates without a build step.
const { h, render, Fragment } = globalThis.preact;
const { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId } = globalThis.preactHooks;

export const html = globalThis.htm.bind(h);
export { h, render, Fragment, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId };

/** A value that several parts of the page look at. */
export function store(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      if (next === value) return;
      value = next;
      for (const listener of [...listeners]) listener(value);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The value of a store, and a new drawing whenever it changes. */
export function useStore(of) {
  const [value, setValue] = useState(of.get());
  useEffect(() => {
    setValue(of.get());
    return of.subscribe(setValue);
  }, [of]);
  return value;
}

/** Whether something was said in this browser before; storage may be forbidden. */
export function remembered(key, otherwise) {
  try {
    const text = localStorage.getItem(`leveret.${key}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(`leveret.${key}`, JSON.stringify(value));
  } catch { /* It holds until the page is closed. */ }
}
