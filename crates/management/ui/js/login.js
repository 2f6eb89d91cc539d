// Who are you? Name and password go to the broker once; what is kept is a cookie that no script
// can read and that ends.
import { html, useLayoutEffect, useRef, useState } from "./lib.js";
import { login } from "./api.js";
import { Icon, Logo } from "./icons.js";

export function Login() {
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  const form = useRef();
  useLayoutEffect(() => form.current.elements.name.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const { name, password } = event.target.elements;
    setBusy(true);
    setFailure(undefined);
    try {
      await login(name.value, password.value);
    } catch (error) {
      setBusy(false);
      setFailure(words(error));
      password.value = "";
      password.focus();
    }
  };
  return html`<main class="login"><div class="login-card">
    <h1><${Logo} size=${36} />Leveret</h1>
    <form ref=${form} onSubmit=${submit}>
      <label class="field"><span>User</span><input name="name" autocomplete="username" autocapitalize="none" spellcheck=${false} required /></label>
      <label class="field"><span>Password</span><input name="password" type="password" autocomplete="current-password" required /></label>
      ${failure && html`<p class="error" role="alert"><${Icon} name="alert" />${failure}</p>`}
      <button class="primary block" disabled=${isBusy}>${isBusy ? "Checking …" : "Log in"}</button>
    </form></div>
    <p class="login-note">A user of the broker with the tag <code>management</code>, <code>policymaker</code>, <code>monitoring</code> or <code>administrator</code>.</p></main>`;
}

function words(failure) {
  if (failure.status !== 401) return failure.message;
  if (/loopback|localhost/i.test(failure.reason)) return "This user may only log in from the broker's own machine. Use another user, or a tunnel.";
  if (/management user/i.test(failure.reason)) return "This user has no tag that opens this page. An administrator can give one, such as “management”.";
  return "Name or password is wrong. After many wrong ones the broker does not look at passwords for a while.";
}
