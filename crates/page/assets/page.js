// Draws the charts of a page from the data beside each of them, and switches between light and dark.
// Charts of one group whose axis is of one kind share their crosshair and their zoom.
(function () {
  "use strict";
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // The same format as `three` of figures.rs has.
  function three(value) {
    if (value == null || !isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size < 5e-7) return "0";
    const rounded = Number(size.toExponential(2));
    const sign = value < 0 ? "-" : "";
    if (rounded >= 100) return sign + rounded.toFixed(0).replace(/\B(?=(\d{3})+$)/g, ",");
    return sign + rounded.toFixed(Math.min(6, Math.max(1, 2 - Math.floor(Math.log10(rounded)))));
  }
  // On an axis zeros behind the point say nothing.
  function tick(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e6) return Number((value / 1e6).toPrecision(6)) + " M";
    if (size >= 1e3) return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
    return String(Number(value.toPrecision(4)));
  }

  // Percentiles by nines: 0 is the least, 1 the 90th, 2 the 99th.
  const NINES_MAX = 5;
  const nines = (percentile) => Math.min(NINES_MAX, -Math.log10(Math.max(10 ** -NINES_MAX, 1 - percentile / 100)));
  const percentile = (tens) => "p" + Number((100 * (1 - 10 ** -tens)).toFixed(Math.max(1, Math.ceil(tens) - 1)));
  const PERCENTILES = [[0, "least"], [Math.log10(2), "p50"], [1, "p90"], [2, "p99"], [3, "p99.9"], [4, "p99.99"], [5, "p99.999"]];

  // The next 1, 2 or 5 of the tens below a value, or above it.
  const STEPS = [1, 2, 5, 10];
  const power = (value) => 10 ** Math.floor(Math.log10(value) + 1e-9);
  const below = (value) => STEPS.filter((step) => step * power(value) <= value * 1.0001).pop() * power(value);
  const above = (value) => STEPS.find((step) => step * power(value) >= value * 0.9999) * power(value);

  const DASHES = { solid: [], dashed: [6, 4], dotted: [2, 3] };
  const HEIGHT = 260;
  const AXIS = "12px system-ui, sans-serif";

  // What happened: lines and bands over the curves, with words above the plot, each in the first row where it covers no other.
  const MARK = { font: "11px system-ui, sans-serif", row: 14, rows: 3 };
  const measured = document.createElement("canvas").getContext("2d");
  function markWords(marks, left, width, place, ratio) {
    const ends = Array(MARK.rows).fill(-Infinity);
    measured.font = MARK.font;
    return marks.map((mark) => {
      const at = place(mark.at), wide = measured.measureText(mark.text).width * ratio;
      if ((mark.until == null ? at : place(mark.until)) < left || at > left + width) return null;
      const x = Math.max(left, Math.min(at, left + width - wide));
      const row = ends.findIndex((end) => end < x);
      if (row >= 0) ends[row] = x + wide + 8 * ratio;
      return row < 0 ? null : { x, row };
    });
  }
  // How many rows of them a chart needs, before it is laid out.
  const rowsOf = (marks, width, first, last) =>
    Math.max(0, ...markWords(marks, 0, width - 70, (at) => ((at - first) / (last - first || 1)) * (width - 70), 1).map((word) => (word ? word.row + 1 : 0)));

  function drawMarks(u, marks, rows) {
    const ratio = devicePixelRatio || 1;
    const ctx = u.ctx;
    const { left, top, width, height } = u.bbox;
    const words = markWords(marks, left, width, (at) => u.valToPos(at, "x", true), ratio);
    ctx.save();
    ctx.font = MARK.font.replace("11", 11 * ratio);
    ctx.textBaseline = "bottom";
    ctx.textAlign = "left";
    marks.forEach((mark, nth) => {
      const at = u.valToPos(mark.at, "x", true);
      const until = mark.until == null ? at : u.valToPos(mark.until, "x", true);
      if (until < left || at > left + width) return;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.bad ? "--bad" : "--faint");
      const word = words[nth] && words[nth].row < rows ? words[nth] : null;
      const high = word ? (rows - 1 - word.row) * MARK.row * ratio : 0;
      if (until > at) {
        const from = Math.max(left, at);
        ctx.globalAlpha = 0.14;
        ctx.fillRect(from, top, Math.min(until, left + width) - from, height);
        ctx.globalAlpha = 1;
      } else {
        ctx.lineWidth = ratio;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(Math.round(at), top);
        ctx.lineTo(Math.round(at), top + height);
        ctx.stroke();
        ctx.setLineDash([]);
      }
      if (word) ctx.fillText(mark.text, word.x, top - high - 2 * ratio);
    });
    ctx.restore();
  }

  // A height to compare with.
  function drawLevel(u, [at, text]) {
    const ratio = devicePixelRatio || 1;
    const ctx = u.ctx;
    const { left, top, width, height } = u.bbox;
    const y = Math.round(u.valToPos(at, "y", true));
    if (y < top - 1 || y > top + height + 1) return;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--ink");
    ctx.lineWidth = ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(left, y);
    ctx.lineTo(left + width, y);
    ctx.stroke();
    ctx.font = 11 * ratio + "px system-ui, sans-serif";
    ctx.textAlign = "right";
    ctx.textBaseline = y < top + 16 * ratio ? "top" : "bottom";
    ctx.fillText(text, left + width - 4 * ratio, y + (y < top + 16 * ratio ? 3 : -3) * ratio);
    ctx.restore();
  }

  // Words beside dots: each at the first place around its dot where it covers no dot and no other word, else only under the pointer.
  function drawWords(u, all) {
    const ratio = devicePixelRatio || 1;
    const ctx = u.ctx;
    const { left, top, width, height } = u.bbox;
    const dots = all.flatMap((one) => one.x.map((x, at) => ({ x: u.valToPos(x, "x", true), y: u.valToPos(one.y[at], "y", true), text: (one.labels || [])[at], hue: one.hue })));
    const within = dots.filter((dot) => dot.x >= left - 1 && dot.x <= left + width + 1 && dot.text);
    const taken = within.map((dot) => [dot.x - 5 * ratio, dot.y - 5 * ratio, dot.x + 5 * ratio, dot.y + 5 * ratio]);
    ctx.save();
    ctx.font = 11 * ratio + "px system-ui, sans-serif";
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    const high = 12 * ratio, gap = 9 * ratio;
    for (const dot of within) {
      const wide = ctx.measureText(dot.text).width;
      const places = [];
      for (const dy of [0, -high, high, -2 * high, 2 * high]) places.push([dot.x + gap, dot.y + dy], [dot.x - gap - wide, dot.y + dy]);
      places.push([dot.x - wide / 2, dot.y - high], [dot.x - wide / 2, dot.y + high]);
      const boxed = ([x, y]) => [x - 3 * ratio, y - high / 2, x + wide + 3 * ratio, y + high / 2];
      const place = places.find((one) => {
        const [a, b, c, d] = boxed(one);
        const isIn = a >= left - 3 * ratio && c <= left + width + 3 * ratio && b >= top && d <= top + height;
        return isIn && taken.every(([e, f, g, h]) => c <= e || a >= g || d <= f || b >= h);
      });
      if (!place) continue;
      taken.push(boxed(place));
      ctx.fillStyle = colour("--c" + dot.hue);
      ctx.fillText(dot.text, place[0], place[1]);
    }
    ctx.restore();
  }

  // The nearest measurement of a curve: others on the chart may have been measured at other moments.
  function nearest(u, series, index) {
    const values = u.data[series];
    if (values[index] != null) return index;
    let before = index, after = index;
    while (before > 0 && values[before] === undefined) before--;
    while (after < values.length - 1 && values[after] === undefined) after++;
    const xs = u.data[0];
    const has = (at) => values[at] != null;
    if (has(before) && (!has(after) || xs[index] - xs[before] <= xs[after] - xs[index])) return before;
    return has(after) ? after : index;
  }

  function draw(figure, width) {
    const data = figure.data || (figure.data = JSON.parse(figure.querySelector("script").textContent));
    const isPercentile = data.x.scale === "percentile";
    // What is drawn goes from left to right, and no two places are the same: of equal ones the later stands a hair to the right.
    const sorted = data.series.map((one) => {
      const order = one.x.map((_, at) => at).sort((a, b) => one.x[a] - one.x[b]);
      const x = order.map((at) => (isPercentile ? nines(one.x[at]) : one.x[at]));
      for (let at = 1; at < x.length; at++) if (x[at] <= x[at - 1]) x[at] = x[at - 1] + Math.max(Math.abs(x[at - 1]), 1) * 1e-9;
      return Object.assign({}, one, { x, y: order.map((at) => one.y[at]), labels: one.labels && order.map((at) => one.labels[at]) });
    });
    const isDots = data.series.some((one) => one.stroke === "dots");
    figure.classList.toggle("dots", isDots);
    const levelled = (low, high) => (data.level ? [Math.min(low, data.level[0]), Math.max(high, data.level[0])] : [low, high]);
    const tables = sorted.map((one) => [one.x, one.y]);
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const few = joined[0].length < 3;
    const ink = colour("--faint"), line = colour("--line");
    const axis = { stroke: ink, font: AXIS, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 5 } };
    const xAxis = Object.assign({ label: data.x.name, labelFont: AXIS, labelSize: 18, size: 32, space: 60, values: (u, at) => at.map(tick) }, axis);
    if (isPercentile) {
      const within = PERCENTILES.filter(([tens]) => tens >= joined[0][0] - 0.01 && tens <= joined[0][joined[0].length - 1] + 0.01);
      xAxis.splits = () => within.map(([tens]) => tens);
      xAxis.values = (u, at) => {
        // Where there is little room the ends of the tail are what one looks for.
        let free = -Infinity;
        return at.map((tens) => {
          const name = (PERCENTILES.find((one) => one[0] === tens) || [])[1];
          const place = u.valToPos(tens, "x");
          if (!name || place < free) return "";
          free = place + 8 * name.length + 4;
          return name;
        });
      };
    }
    const isLog = data.y.scale === "log";
    // Time begins at the start, unless the reader looks at a part of it; a single value stands in the middle.
    const first = joined[0][0], last = joined[0][joined[0].length - 1];
    const xRange = (u, low, high) => {
      if (low == null) return [0, 1];
      // Dots of rates and costs are read from nothing on.
      if (isDots && low === first && high === last) return [0, high > 0 ? uPlot.rangeNum(0, high, 0.1, true)[1] : 1];
      if (data.x.scale === "log") return low === high ? [low / 2, high * 2] : low === first && high === last ? [below(low), above(high)] : [low, high];
      if (data.x.scale === "time" && low === first && high === last) return [Math.min(0, low), high];
      return low === high ? [low - 1, high + 1] : [low, high];
    };
    const yAxis = Object.assign({ size: (u, values) => 14 + 7.2 * Math.max(5, ...(values || []).map((text) => (text || "").length)), values: (u, at) => at.map((value) => (value == null ? "" : tick(value))) }, axis);
    // A logarithmic axis has lines at the tens alone, and at 2 and 5 where there is hardly more than one of them.
    const splits = (u, at, low, high) => {
      const found = [];
      const steps = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const step of steps) {
          const value = Number((step * 10 ** power).toPrecision(3));
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      return found;
    };
    const all = (u, at) => at;
    if (isLog) Object.assign(yAxis, { splits, filter: all });
    if (data.x.scale === "log") Object.assign(xAxis, { splits, filter: all });
    const rows = rowsOf(data.marks || [], width, Math.min(0, first), last);
    const chart = new uPlot({
      width, height: HEIGHT,
      padding: [rows > 0 ? rows * MARK.row + 4 : null, null, null, null],
      scales: {
        x: { time: false, distr: data.x.scale === "log" ? 3 : 1, range: xRange },
        y: isLog
          ? { distr: 3, range: (u, least, most) => {
              if (least == null) return [1, 10];
              const [low, high] = levelled(least, most);
              return low === high ? [below(low) / 2, above(high) * 2] : [below(low), above(high)];
            } }
          : { range: (u, least, most) => {
              if (least == null) return [0, 1];
              const [low, high] = levelled(least, most);
              return [Math.min(0, low), uPlot.rangeNum(0, high > 0 ? high : 1, 0.08, true)[1]];
            } },
      },
      axes: [xAxis, yAxis],
      cursor: {
        sync: { key: data.group + "/" + data.x.scale, setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false },
        focus: { prox: 16 },
        dataIdx: nearest,
        points: { size: 7 },
      },
      focus: { alpha: 0.35 },
      legend: { markers: { width: 2, dash: (u, at) => (at > 0 && DASHES[sorted[at - 1].stroke] && sorted[at - 1].stroke) || "solid" } },
      series: [
        { label: data.x.name, value: (u, at) => (at == null ? "–" : isPercentile ? percentile(at) : three(at)) },
        ...sorted.map((one) => ({
          label: one.name,
          stroke: colour("--c" + one.hue),
          width: 2,
          dash: DASHES[one.stroke],
          paths: one.stroke === "dots" ? () => null : undefined,
          points: { show: few || one.x.length < 16 || one.stroke === "dots", size: one.stroke === "dots" ? 9 : 5, fill: one.stroke === "dots" ? colour("--c" + one.hue) : undefined },
          value: (u, value, series, at) => at == null ? (data.x.scale === "time" ? span(u, series) : "") : three(value) + (value != null && one.labels ? " " + (one.labels[one.x.indexOf(u.data[0][at])] || "") : ""),
        })),
      ],
      hooks: {
        // Values stand in the legend while something points at them, here or in a chart that moves with this one.
        setCursor: [(u) => u.root.classList.toggle("pointed", u.cursor.idx != null)],
        setScale: [(u, key) => { if (key === "x" && u.cursor.idx == null && u.legend) u.setLegend({ idx: null }, false); }],
        draw: [
          (u) => drawMarks(u, data.marks || [], rows),
          (u) => data.level && drawLevel(u, data.level),
          (u) => drawWords(u, sorted.filter((one, at) => one.labels && u.series[at + 1].show)),
        ],
      },
    }, joined, figure.querySelector(".plot"));
    figure.chart = chart;
  }

  // Least, most and mean of what of a curve over time is in view, for while nothing points at it.
  function span(u, series) {
    const { min, max } = u.scales.x;
    const isIn = (x) => min == null || (x >= min && x <= max);
    const seen = u.data[series].filter((value, at) => value != null && isIn(u.data[0][at]));
    if (!seen.length) return "";
    const mean = seen.reduce((sum, value) => sum + value, 0) / seen.length;
    return `${three(Math.min(...seen))} to ${three(Math.max(...seen))}, mean ${three(mean)}`;
  }

  // A chart for a presentation, with its title and its legend; and its figures for a spreadsheet.
  const titleOf = (figure) => figure.querySelector("figcaption > b").textContent;
  const shownOf = (figure) => figure.chart.series.map((series, at) => ({ series, at })).filter(({ series, at }) => at === 0 || series.show);
  function save(figure, end, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = titleOf(figure).replace(/[^\w.]+/g, "-") + end;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  function savePicture(figure) {
    const ratio = devicePixelRatio || 1, pad = 14 * ratio, row = 20 * ratio;
    const drawn = figure.chart.ctx.canvas, out = document.createElement("canvas"), ctx = out.getContext("2d");
    const small = `${12 * ratio}px system-ui, sans-serif`;
    ctx.font = small;
    let x = pad, y = 0;
    const words = shownOf(figure).slice(1).map(({ series }) => {
      const wide = ctx.measureText(series.label).width + 40 * ratio;
      if (x > pad && x + wide > drawn.width + pad) (x = pad), (y += row);
      const place = { series, x, y };
      x += wide;
      return place;
    });
    const top = 2.2 * row;
    Object.assign(out, { width: drawn.width + 2 * pad, height: top + drawn.height + y + 2 * row });
    ctx.fillStyle = colour("--paper");
    ctx.fillRect(0, 0, out.width, out.height);
    ctx.fillStyle = colour("--ink");
    ctx.font = `600 ${15 * ratio}px system-ui, sans-serif`;
    ctx.fillText(figure.querySelector("figcaption").dataset.whole, pad, 1.4 * row, drawn.width);
    ctx.drawImage(drawn, pad, top);
    ctx.font = small;
    for (const { series, x, y } of words) {
      const at = top + drawn.height + y + row;
      ctx.strokeStyle = series.stroke();
      ctx.lineWidth = 2.5 * ratio;
      ctx.setLineDash((series.dash || []).map((dash) => dash * ratio));
      ctx.beginPath();
      ctx.moveTo(x, at - 4 * ratio);
      ctx.lineTo(x + 22 * ratio, at - 4 * ratio);
      ctx.stroke();
      ctx.fillText(series.label, x + 27 * ratio, at);
    }
    out.toBlob((blob) => save(figure, ".png", blob));
  }
  function saveFigures(figure) {
    const shown = shownOf(figure), cell = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
    const isPercentile = figure.data.x.scale === "percentile";
    const lines = [shown.map(({ series }) => cell(series.label)).join(",")];
    figure.chart.data[0].forEach((x, row) => {
      const first = isPercentile ? Number((100 * (1 - 10 ** -x)).toPrecision(8)) : x;
      lines.push([first, ...shown.slice(1).map(({ at }) => figure.chart.data[at][row] ?? "")].join(","));
    });
    save(figure, ".csv", new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  }
  function addTools(figure) {
    const caption = figure.querySelector("figcaption");
    caption.dataset.whole = caption.textContent;
    const tools = document.createElement("span");
    tools.className = "tools";
    for (const [word, told, act] of [["picture", "save this chart as a picture", savePicture], ["figures", "save its figures as a table (CSV)", saveFigures]]) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: word, title: told });
      button.addEventListener("click", () => { if (!figure.chart) draw(figure, room(figure)); act(figure); });
      tools.append(button);
    }
    caption.append(tools);
  }

  function redraw(figure, width) {
    if (!figure.chart) return;
    figure.chart.destroy();
    draw(figure, width || room(figure));
  }
  const room = (figure) => Math.max(200, Math.floor(figure.querySelector(".plot").clientWidth));
  let figures = [];
  const all = (width) => figures.forEach((figure) => (figure.chart ? redraw(figure, width) : draw(figure, width || room(figure))));

  // A page of many charts draws those that are seen; a chart has the width that its place has.
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting && !target.chart) draw(target, room(target));
  }, { rootMargin: "400px" });
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const figure = target.closest("figure");
      if (figure.chart && !printing && room(figure) !== figure.chart.width) figure.chart.setSize({ width: room(figure), height: HEIGHT });
    }
  });
  function begin() {
    figures = [...document.querySelectorAll("figure.chart")];
    for (const figure of figures) {
      addTools(figure);
      seen.observe(figure);
      sized.observe(figure.querySelector(".plot"));
    }
  }
  begin();

  // What was measured since takes the place of what is shown, unless somebody points at it; what the reader has unfolded, looks at a
  // part of, or switched off stays so.
  addEventListener("renew", ({ detail }) => {
    if (document.querySelector(".uplot.pointed")) return;
    const next = new DOMParser().parseFromString(detail, "text/html");
    const unfolded = new Map([...document.querySelectorAll("details")].map((fold) => [fold.textContent.slice(0, 40), fold.open]));
    const drawn = new Map(figures.filter((figure) => figure.chart).map((figure) => {
      const u = figure.chart, xs = u.data[0], { min, max } = u.scales.x;
      const part = min > Math.min(0, xs[0]) || max < xs[xs.length - 1] ? { min, max } : null;
      return [titleOf(figure), { part, off: u.series.filter((series) => !series.show).map((series) => series.label) }];
    }));
    figures.forEach((figure) => { seen.unobserve(figure); sized.unobserve(figure.querySelector(".plot")); if (figure.chart) figure.chart.destroy(); });
    document.title = next.title;
    document.querySelector("main").replaceWith(next.querySelector("main"));
    document.querySelectorAll("details").forEach((fold) => { fold.open = unfolded.get(fold.textContent.slice(0, 40)) ?? fold.open; });
    begin();
    for (const figure of figures.filter((one) => drawn.has(titleOf(one)))) {
      const { part, off } = drawn.get(titleOf(figure));
      draw(figure, room(figure));
      figure.chart.series.forEach((series, at) => { if (at > 0 && off.includes(series.label)) figure.chart.setSeries(at, { show: false }); });
      if (part) figure.chart.setScale("x", part);
    }
  });

  // Light or dark: what the system says until the reader says otherwise.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } }, set: (theme) => { try { localStorage.setItem("theme", theme); } catch { /* a file may have no storage */ } } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { button.textContent = isDark() ? "light" : "dark"; };
  const turn = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; name(); figures.forEach((figure) => redraw(figure)); };
  if (stored.get()) root.dataset.theme = stored.get();
  button.hidden = false;
  name();
  button.addEventListener("click", () => { const theme = isDark() ? "light" : "dark"; stored.set(theme); turn(theme); });
  system.addEventListener("change", () => { if (!root.dataset.theme) turn(); });

  // On paper: light, everything drawn, everything unfolded.
  const PAPER = 680;
  let printing = false, theme, closed = [];
  addEventListener("beforeprint", () => {
    printing = true;
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((fold) => { fold.open = true; });
    all(PAPER);
  });
  addEventListener("afterprint", () => {
    printing = false;
    closed.forEach((fold) => { fold.open = false; });
    turn(theme);
  });
})();
