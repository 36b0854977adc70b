"use strict";
(() => {
  const TONES = ["accent", "warm", "second", "third", "fourth", "fifth"], MOST_POINTS = 2000;
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const known = new Map(data.embedded.map((episode) => [episode.number, episode]));
  const images = new Map(), hidden = new Set();
  let episode = null, row = 0, timer = null, wanted = 0, ready = true, cells = [], rows = [], sort = "id", down = false, most = 200, asked = 0, isFollowing = false;

  const number = (value) => {
    if (value === null || value === undefined) return "\u2013";
    const isExact = Math.abs(value) <= Number.MAX_SAFE_INTEGER && (Number.isInteger(value) || Math.abs(value) >= 1e3);
    return isExact ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  };
  const part = (value) => (value === null || Number.isInteger(value) ? number(value) : value.toFixed(2));
  const make = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const element = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries({ "vector-effect": "non-scaling-stroke", ...attributes })) made.setAttribute(key, value);
    return made;
  };

  const across = (at) => ((at / Math.max(episode.rows.length - 1, 1)) * 1000).toFixed(1);
  const up = (value, [low, high]) => (high > low ? 97 - ((value - low) / (high - low)) * 94 : 50).toFixed(1);

  // The rows that are drawn: of many only the least and the greatest of each stretch.
  const drawn = (values) => {
    const size = Math.ceil((2 * values.length) / MOST_POINTS), found = [];
    for (let start = 0; start < values.length; start += size) {
      if (size < 2) { found.push(start); continue; }
      let low = start, high = start;
      for (let at = start; at < Math.min(start + size, values.length); at++) {
        if (values[at] === null) continue;
        if (values[low] === null || values[at] < values[low]) low = at;
        if (values[high] === null || values[at] > values[high]) high = at;
      }
      found.push(Math.min(low, high));
      if (low !== high) found.push(Math.max(low, high));
    }
    return found;
  };

  const path = (values, span, isStepped) => {
    let moves = "", isFirst = true;
    for (const at of drawn(values)) {
      if (values[at] === null) { isFirst = true; continue; }
      const x = across(at), y = up(values[at], span);
      moves += isFirst ? `M${x},${y}h0` : isStepped ? `H${x}V${y}` : `L${x},${y}`;
      isFirst = false;
    }
    return moves;
  };

  const range = (lists) => {
    let low = Infinity, high = -Infinity;
    for (const list of lists) for (const value of list) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    return low > high ? [0, 1] : [low, high];
  };

  function drawCurves() {
    const actions = episode.actions ?? [], count = Math.min(episode.parts, TONES.length), ends = actions.length;
    const curves = [{ name: "return", lines: [episode.returns], parts: 1 }, { name: "reward", lines: [episode.rewards], parts: 1 }];
    if (ends) curves.push({ name: "action", parts: episode.parts, whole: actions.every((one) => one.every(Number.isInteger)), lines: Array.from({ length: count }, (_, n) => actions.map((one) => one[n])) });
    cells = [];
    $("curves").replaceChildren(...curves.concat(episode.curves).map((one) => {
      const span = range(one.name === "return" ? [...one.lines, [0]] : one.lines);
      const plot = element("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": `${one.name} over the episode` });
      const legend = make("p", { className: "legend" }, make("b", { textContent: one.name }));
      one.lines.forEach((values, n) => {
        const tone = TONES[n], moves = path(values, span, one.whole), value = make("span");
        if (one.name === "return" && moves) plot.append(element("path", { d: `${moves}V${up(0, span)}H0Z`, fill: "var(--soft)" }));
        plot.append(element("path", { d: moves, fill: "none", stroke: `var(--${tone})`, "stroke-width": 1.5, "stroke-linecap": "round" }));
        legend.append(make("span", {}, ...(one.parts > 1 ? [make("i", { className: `tone-${tone}` }), `[${n}] `] : []), value));
        cells.push([value, values]);
      });
      if (one.parts > one.lines.length) legend.append(`and ${number(one.parts - one.lines.length)} more`);
      plot.append(element("line", { y1: 0, y2: 100, stroke: "var(--ink)", "stroke-width": 1.5, class: "cursor" }));
      return make("div", {}, legend, plot);
    }));
    $("texts").replaceChildren(...episode.texts.flatMap((one) => {
      const value = make("dd");
      cells.push([value, null, one]);
      return [make("dt", { textContent: one.name }), value];
    }));
    $("hidden").textContent = episode.hidden ? `${number(episode.hidden)} more fields are not shown` : "";
  }

  function load(source) {
    if (!images.has(source)) {
      if (images.size > 120) images.delete(images.keys().next().value);
      const image = new Image();
      image.addEventListener("load", draw);
      image.addEventListener("error", () => {
        images.delete(source);
        if (!episode.frames.some(({ strips }) => strips.includes(source))) return;
        // The server keeps a few editions of a dataset that grows: an older episode is asked for again.
        if (!data.served || source.startsWith(`v${data.edition}/`)) $("title").textContent = "a picture cannot be read";
        else { known.delete(episode.number); open(episode.number, row); }
      });
      image.src = source;
      images.set(source, image);
    }
    return images.get(source);
  }

  function buildStage() {
    const several = episode.frames.length > 1;
    $("cameras").replaceChildren(...(several ? episode.frames : []).map(({ name }) => {
      const button = make("button", { textContent: name });
      button.setAttribute("aria-pressed", !hidden.has(name));
      button.addEventListener("click", () => {
        hidden.has(name) ? hidden.delete(name) : hidden.add(name);
        button.setAttribute("aria-pressed", !hidden.has(name));
        document.querySelectorAll("#stage figure").forEach((one, n) => { one.hidden = hidden.has(episode.frames[n].name); });
        draw();
      });
      return button;
    }));
    $("stage")?.replaceChildren(...episode.frames.map(({ name, width, height }, n) => {
      const times = Math.max(1, Math.round(460 / width));
      const canvas = make("canvas", { id: n ? `canvas${n}` : "canvas", width: width * times, height: height * times });
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", name);
      return make("figure", { hidden: several && hidden.has(name) }, canvas, ...(several ? [make("figcaption", { textContent: name })] : []));
    }));
  }

  function draw() {
    ready = true;
    episode.frames.forEach(({ name, width, height, columns, count, strips }, n) => {
      if (hidden.has(name) && episode.frames.length > 1) return;
      const strip = Math.floor(row / count), place = row % count, image = load(strips[strip]);
      for (const next of [strip + 1, strip + 2, strip + 3]) if (next < strips.length) load(strips[next]);
      if (!image.complete || !image.naturalWidth) { ready = false; return; }
      const abreast = Math.floor(image.naturalWidth / width), canvas = $(n ? `canvas${n}` : "canvas"), pen = canvas.getContext("2d");
      pen.imageSmoothingEnabled = false;
      pen.drawImage(image, (place % abreast) * width, Math.floor(place / abreast) * height, width, height, 0, 0, canvas.width, canvas.height);
      canvas.dataset.row = row;
    });
  }

  function show(at) {
    row = Math.max(0, Math.min(at, episode.rows.length - 1));
    const step = episode.rows[row], isEnd = step >= episode.length, reward = isEnd ? null : episode.rewards[row];
    $("slider").value = row;
    $("slider").setAttribute("aria-valuetext", `step ${step} of ${episode.length}`);
    $("step").textContent = isEnd ? `${number(step)} (end)` : number(step);
    $("action").textContent = isEnd || !episode.actions ? "\u2013" : episode.actions[row].map(part).join(", ") + (episode.parts > episode.actions[row].length ? ", ..." : "");
    $("reward").textContent = number(reward);
    $("reward").className = reward ? "hot" : "";
    $("return").textContent = number(episode.returns[row]);
    const x = across(row);
    for (const one of document.querySelectorAll(".cursor")) { one.setAttribute("x1", x); one.setAttribute("x2", x); }
    for (const [cell, values, text] of cells) cell.textContent = values ? number(values[row]) : text.table[text.rows[row]];
    draw();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    $("play").textContent = "Play";
  }
  const step = (at) => { stop(); show(at); };

  function play() {
    if (timer) return stop();
    if (row >= episode.rows.length - 1) show(0);
    $("play").textContent = "Pause";
    timer = setInterval(() => {
      if (row >= episode.rows.length - 1) stop();
      else if (ready) show(row + 1); // a frame that is still on its way is waited for
    }, 1000 / Number($("speed").value));
  }

  const ask = async (address) => {
    const answer = await fetch(address), text = await answer.text();
    const found = answer.ok ? JSON.parse(text) : { error: text };
    if (found.error) throw new Error(found.error);
    return found;
  };

  async function open(chosen, at = 0) {
    wanted = chosen;
    if (!known.has(chosen) && data.served) {
      try {
        const found = await ask(`v${data.edition}/episodes/${chosen}.json`);
        known.set(chosen, found);
        if (known.size > 30) known.delete(known.keys().next().value);
      } catch (error) {
        if (wanted === chosen) $("title").textContent = `episode ${chosen} cannot be read: ${error.message}`;
        return;
      }
    }
    if (!known.has(chosen) || wanted !== chosen) return;
    stop();
    episode = known.get(chosen);
    $("title").textContent = episode.title + (episode.every > 1 ? `  \u00b7  one row for every ${episode.every} steps` : "");
    document.querySelector(".facts").classList.toggle("long", episode.parts > 1);
    $("slider").max = episode.rows.length - 1;
    $("pick").value = [...$("pick").options].some((option) => Number(option.value) === chosen) ? chosen : "";
    if ($("goto")) $("goto").value = chosen;
    buildStage();
    drawCurves();
    show(at);
    mark();
  }

  const mark = () => {
    for (const one of $("rows").children) {
      const isCurrent = episode && Number(one.dataset.episode) === episode.number;
      isCurrent ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current");
      const box = one.closest(".scroll"), top = one.offsetTop - box.clientHeight / 2;
      if (isCurrent && Math.abs(top - box.scrollTop) > box.clientHeight / 2 - one.offsetHeight) box.scrollTop = top - (top % one.offsetHeight); // no row half below the heading
    }
  };

  // The condition of a filter for a page without a server: what rlx/transform/selections.py reads, in the same order.
  function condition(text) {
    const tokens = text.replace(/^\s*filter:/, "").match(/[A-Za-z_]\w*|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[<>=!]=|\S/g) ?? [];
    let at = 0, row = 0;
    const fail = (problem) => { throw new Error(`filter ${text}: ${problem}`); };
    const token = (...wanted) => wanted.includes(tokens[at]) && tokens[at++];
    const as = (kind, value) => (typeof value === kind ? value : fail(`expected ${kind === "number" ? "a number" : "a condition such as return > 10"}`));
    const chain = (inner, kind, operations) => () => {
      let value = inner();
      for (let name; (name = token(...Object.keys(operations))); ) {
        const left = value, right = inner(), operation = operations[name];
        value = () => operation(as(kind, left()), as(kind, right()));
      }
      return value;
    };
    const atom = () => {
      const name = tokens[at++];
      if (name === "(") {
        const value = any();
        return token(")") ? value : fail("a parenthesis is not closed");
      }
      if (name === "-") { const value = atom(); return () => -as("number", value()); }
      if (name === "+") return atom();
      if (/^[\d.]/.test(name)) return () => Number(name);
      if (name === "True" || name === "False") return () => name === "True";
      const values = Object.hasOwn(data.columns, name) ? data.columns[name] : fail(`${name ?? "the end"} is unexpected; names are ${Object.keys(data.columns).join(", ")}`);
      return () => values[row] ?? NaN;
    };
    const product = chain(atom, "number", { "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => ((a % b) + b) % b });
    const sum = chain(product, "number", { "+": (a, b) => a + b, "-": (a, b) => a - b });
    const orders = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "==": (a, b) => a === b, "!=": (a, b) => a !== b };
    const comparison = () => {
      const values = [sum()], names = [];
      for (let name; (name = token(...Object.keys(orders))); ) { names.push(name); values.push(sum()); }
      if (!names.length) return values[0];
      return () => {
        const found = values.map((value) => value());
        return names.every((name, n) => {
          const kind = /[<>]/.test(name) ? "number" : typeof found[n];
          return orders[name](as(kind, found[n]), as(kind, found[n + 1]));
        });
      };
    };
    const not = () => {
      if (!token("not")) return comparison();
      const value = not();
      return () => !as("boolean", value());
    };
    const any = chain(chain(not, "boolean", { and: (a, b) => a && b }), "boolean", { or: (a, b) => a || b });
    const whole = any();
    if (at < tokens.length) fail(`${tokens[at]} is unexpected`);
    return (_, n) => { row = n; return as("boolean", whole()); };
  }

  async function list() {
    const turn = ++asked, where = $("where")?.value ?? "";
    let found = data.rows.length, of = data.count;
    try {
      if (data.served) {
        const answer = await ask(`v${data.edition}/table.json?${new URLSearchParams({ where, sort, most, ...(down && { down: 1 }) })}`);
        if (turn !== asked) return;
        ({ rows, found, of } = answer);
      } else {
        const column = ["id", "return", "length", "end"].indexOf(sort), way = down ? -1 : 1;
        const kept = where.trim() ? data.rows.filter(condition(where)) : [...data.rows];
        found = kept.length;
        rows = kept.sort(([...a], [...b]) => way * (a[column] === b[column] ? 0 : a[column] === null || (b[column] !== null && a[column] < b[column]) ? -1 : 1));
      }
    } catch (error) {
      if (turn === asked) $("found").replaceChildren(make("span", { className: "hot", textContent: error.message }));
      return;
    }
    const isCut = rows.length < Math.min(found, most); // the server gives only so many
    $("found").textContent = (found === of && !isCut ? "" : `${number(found)} of ${number(of)} episodes`) + (isCut ? `; the first ${number(rows.length)} are shown` : "");
    $("more").hidden = isCut || found <= rows.length;
    for (const head of document.querySelectorAll("[data-sort]")) {
      if (head.dataset.sort === sort) head.parentNode.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.parentNode.removeAttribute("aria-sort");
    }
    const held = document.activeElement.closest("#rows tr")?.dataset.episode;
    $("rows").replaceChildren(...rows.map(([id, total, length, end]) => {
      const can = data.served || known.has(id), name = can ? make("button", { textContent: number(id) }) : number(id);
      const made = make("tr", {}, make("td", { className: "n" }, name), make("td", { className: "n", textContent: number(total) }), make("td", { className: "n", textContent: number(length) }), make("td", { textContent: end }));
      made.dataset.episode = id;
      return made;
    }));
    if (held) $("rows").querySelector(`[data-episode="${held}"] button`)?.focus({ preventScroll: true });
    mark();
  }

  function beside(way) {
    const shown = rows.map(([id]) => id).filter((id) => data.served || known.has(id)), at = shown.indexOf(episode.number);
    if (shown.length) open(shown[at < 0 ? 0 : Math.max(0, Math.min(at + way, shown.length - 1))]);
  }

  // A dataset that is written while its page is open: new episodes join the table, new figures replace the old.
  async function follow() {
    if (document.hidden || isFollowing) return;
    isFollowing = true;
    try {
      const { edition, writing } = await ask("live.json");
      $("live").textContent = writing ? "\u25cf being written; new episodes appear here" : "";
      if (edition === data.edition) return;
      const fresh = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
      const news = JSON.parse(fresh.getElementById("data").textContent), now = document.querySelectorAll("[data-live]");
      if (!$("player") && fresh.getElementById("player")) return location.reload();
      fresh.querySelectorAll("[data-live]").forEach((one, n) => {
        const old = [...now[n].querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop, box === document.activeElement]);
        now[n].replaceWith(one);
        one.querySelectorAll(".scroll").forEach((box, at) => {
          const [left, top, isFocused] = old[at] ?? [0, 0];
          box.scrollTo(left, top);
          if (isFocused) box.focus({ preventScroll: true });
        });
      });
      Object.assign(data, { edition: news.edition, count: news.count });
      if (!$("player")) return;
      known.clear();
      $("pick").replaceChildren(...fresh.getElementById("pick").children);
      $("goto").max = data.count - 1;
      list();
    } catch (error) {
      $("live").textContent = "\u25cf the server does not answer";
    } finally {
      isFollowing = false;
    }
  }
  if (data.served) setInterval(follow, 2000);
  if (!$("player")) return;

  const seek = (event) => {
    const plot = event.target.closest("#curves svg");
    if (!plot || (event.type === "pointermove" && !event.buttons)) return;
    const box = plot.getBoundingClientRect();
    step(Math.round(((event.clientX - box.left) / box.width) * (episode.rows.length - 1)));
  };
  const on = (id, event, then) => $(id)?.addEventListener(event, then);
  on("play", "click", play);
  on("back", "click", () => step(row - 1));
  on("next", "click", () => step(row + 1));
  on("slider", "input", (event) => step(Number(event.target.value)));
  on("speed", "change", () => { if (timer) { stop(); play(); } });
  on("pick", "change", (event) => { if (event.target.value !== "") open(Number(event.target.value)); });
  on("goto", "change", (event) => open(Math.max(0, Math.min(Math.floor(Number(event.target.value)) || 0, data.count - 1))));
  on("curves", "pointerdown", seek);
  on("curves", "pointermove", seek);
  on("where", "input", () => { most = 200; list(); });
  on("more", "click", () => { most += 1000; list(); });
  document.addEventListener("click", (event) => {
    const head = event.target.closest("[data-sort]"), one = event.target.closest("[data-episode]");
    if (head) {
      down = head.dataset.sort === sort ? !down : sort === "id";
      sort = head.dataset.sort;
      list();
    } else if (one && (data.served || known.has(Number(one.dataset.episode)))) open(Number(one.dataset.episode));
  });
  document.addEventListener("keydown", (event) => {
    const { target, key } = event, isSlider = target.id === "slider";
    if (!episode || event.ctrlKey || event.metaKey || event.altKey || (target.closest("input, select") && !isSlider)) return;
    const far = event.shiftKey ? 10 : 1;
    const keys = { ArrowLeft: () => step(row - far), ArrowRight: () => step(row + far), Home: () => step(0), End: () => step(episode.rows.length), " ": play, n: () => beside(1), p: () => beside(-1) };
    if (!keys[key] || (key === " " && target.closest("button"))) return;
    event.preventDefault();
    keys[key]();
  });
  open(data.first);
  list();
})();
