import type { Appliance } from "../appliance/appliance.ts";
import { tar } from "../images/tar.ts";
import type { Tab } from "./tab.ts";
import { overflow } from "./views.ts";

/** Runs where it is taken for markup, as a part of a document or of an attribute. */
const MARKUP = `"'><img src=x onerror=globalThis.owned=1><script>globalThis.owned=1</script><svg onload=globalThis.owned=1>`;
const RIGHT_TO_LEFT = "\u202e";
/** Sets the title of a terminal, writes its clipboard, makes a link, and clears the screen. */
const ESCAPES = [
  "\x1b]0;owned\x07",
  `\x1b]52;c;${btoa("owned")}\x07`,
  "\x1b]8;;javascript:globalThis.owned=1\x07link\x1b]8;;\x07",
  "\x1b[2J\x1b[31m",
].join("");
const LINE_BYTES = 1_048_576;

/** Names of files below /hostile: no name has a slash, so that closing tags are missing. */
export const HOSTILE_NAMES: readonly (string | Buffer)[] = [
  "<img src=x onerror=globalThis.owned=1>",
  `"onmouseover="globalThis.owned=1" autofocus onfocus="globalThis.owned=1`,
  "javascript:globalThis.owned=1",
  `${RIGHT_TO_LEFT}gpj.exe`,
  "new\nline\tand tab",
  "\x1b]0;owned\x07escape",
  "?path=x&a#b%2f..%2f..",
  " ",
  "{{owned}} $(id) `id`",
  "W".repeat(255),
  Buffer.from([0xff, 0xfe, 0x41]),
];

/** Files below /hostile with content that attacks the reader. */
export const HOSTILE_FILES = {
  "page.html": `<!doctype html><title>owned</title><body onload="globalThis.owned=1">${MARKUP}`,
  "picture.svg": `<svg xmlns="http://www.w3.org/2000/svg" onload="globalThis.owned=1"><script>globalThis.owned=1</script></svg>`,
  "source.js": `// ${RIGHT_TO_LEFT}\u2066 begin admin only\nconst a = "</script>${MARKUP}";\n`,
  "notes.md": `# ${MARKUP}\n\n[link](javascript:globalThis.owned=1)\n`,
  "escapes.txt": `${ESCAPES}${RIGHT_TO_LEFT}after\n`,
  // Says that it is a picture, and is none.
  "lie.png": Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), Buffer.from(MARKUP)]),
  // Would take 14 GiB once it is decoded.
  "bomb.png": Buffer.concat([
    Buffer.from("\x89PNG\r\n\x1a\n", "latin1"),
    Buffer.from("0000000d49484452 0000ea60 0000ea60 0806000000 00000000".replaceAll(" ", ""), "hex"),
    Buffer.alloc(64),
  ]),
  "long-line.txt": "W".repeat(LINE_BYTES),
} as const;

export interface HostileThings {
  /** uuid of the image that the run made; its tag is as long as one may be */
  readonly image: string;
  /** uuid of the operation that ran the hostile command, and ended with exit code 3 */
  readonly run: string;
  /** uuid of an import that failed */
  readonly failed: string;
}

/** A run whose command, variables, files and outputs all try to be more than text. */
export async function hostileThings(appliance: Appliance, base: string): Promise<HostileThings> {
  const names = HOSTILE_NAMES.map((name) => ({
    path: Buffer.concat([Buffer.from("hostile/"), Buffer.from(name as string)]),
  }));
  const contents = Object.entries(HOSTILE_FILES).map(([name, content]) => ({ path: `hostile/${name}`, content }));
  const archive = tar([{ path: "hostile", type: "directory", mode: 0o755 }, ...names, ...contents]);
  const command = [
    `: '${MARKUP.replaceAll("'", "")}' '${RIGHT_TO_LEFT}'`,
    "tar x -C /",
    'printf "%s\\n" "$HOSTILE"',
    'printf "%s\\n" "$HOSTILE" >&2',
    `head -c ${LINE_BYTES} /dev/zero | tr "\\0" W`,
    "exit 3",
  ].join("\n");
  const run = await appliance.spawn({
    image: base,
    command,
    shell: true,
    stdin: `base64:${archive.toString("base64")}`,
    env: { HOSTILE: `${MARKUP}${ESCAPES}${RIGHT_TO_LEFT}` },
  });
  const finished = await appliance.finished(run);
  const { image, exit_code: code } = (finished.result ?? {}) as { image?: string; exit_code?: number };
  if (image === undefined || code !== 3)
    throw new Error(`the hostile run failed: ${JSON.stringify(finished).slice(0, 2000)}`);
  const tag = "t".padEnd(128, "x");
  const tagged = await appliance.fetch(`/images/${image}/tag`, {
    method: "PATCH",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ tag }),
  });
  if (!tagged.ok) throw new Error(`the tag was refused: ${await tagged.text()}`);
  const missing = await appliance.post("/images/import", { registry: `127.0.0.1:9/${"n".repeat(100)}:missing` });
  const { uuid: failed } = (await missing.json()) as { uuid: string };
  await appliance.finished(failed);
  return { image, run, failed };
}

/**
 * The effects of hostile text in the present view: code that ran, elements created from text, a changed title, characters
 * that reverse others, or a view wider than the screen.
 */
export async function harm(tab: Tab): Promise<string[]> {
  const effects = await tab.page.evaluate(() => {
    const problems: string[] = [];
    if ("owned" in globalThis) problems.push("a script of a guest ran");
    if (document.title === "owned") problems.push("an escape set the title");
    const forbidden =
      "iframe, object, embed, [onerror], [onload], [onfocus], [onmouseover], a[href^='javascript:' i], base, form[action]";
    for (const element of document.querySelectorAll(forbidden)) problems.push(element.outerHTML.slice(0, 200));
    for (const script of document.scripts) if (script.src === "") problems.push(script.outerHTML.slice(0, 200));
    for (const picture of document.images) {
      if (!picture.src.startsWith("blob:")) problems.push(picture.outerHTML.slice(0, 200));
    }
    const turner = /[\u202a-\u202e\u2066-\u2069]/;
    const labels = [...document.querySelectorAll("[title], [aria-label]")].map((element) =>
      [element.getAttribute("title"), element.getAttribute("aria-label")].join(" "),
    );
    for (const text of [document.title, document.body.textContent ?? "", ...labels]) {
      const at = turner.exec(text)?.index;
      if (at !== undefined)
        problems.push(`text that turns around: ${JSON.stringify(text.slice(Math.max(0, at - 60), at + 20))}`);
    }
    return problems;
  });
  return [...effects, ...(await overflow(tab))];
}
