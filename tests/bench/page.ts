import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import type { WebManifest } from "../../src/api/web/bundle.ts";
import { median } from "../../src/cli/bench/measure.ts";
import { type Finding, missing, rowOf } from "../../src/cli/bench/row.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { findProgram } from "../../src/system/exec.ts";
import { webDirectory } from "../../src/tools/web.ts";
import { fillStore } from "./fill.ts";
import type { BenchHost } from "./host.ts";
import { startStaticPage } from "./peers/static-page.ts";

const ACCOUNT = "page";
const IMAGES_COUNT = 10_000;
const VIEW = { width: 1280, height: 800 };
const STEP_MS_MAX = 60_000;
/** The number of all images, as the page writes it. */
const ALL_IMAGES = "10,000 images";
/** Ways of the pointer with which the tree is moved, in `CSS pixels`, and the events of each. */
const WAYS = [
  { x: 0, y: -380 },
  { x: -600, y: 0 },
  { x: 300, y: 350 },
  { x: 500, y: -350 },
] as const;
const WAY_STEPS = 40;
const ZOOM_PX = 60;
/** About twice the memory of 10,000 images, their places and their texts. */
const HEAP_MIB_MAX = 16;
/**
 * A script that the browser runs with the page; it is text, because the types of browsers are missing here. It marks the time
 * when the first images are drawn, and when all are: the drawing of a frame is on the screen when the next frame begins.
 */
const WATCH = `
  const look = () => {
    const isFirst = performance.getEntriesByName("first").length === 0;
    if (isFirst && document.querySelector("[role=treeitem]") !== null) performance.mark("first");
    const counts = [...document.querySelectorAll("header .number")].map(({ textContent }) => textContent);
    const isWhole = counts.some((text) => text.startsWith("${ALL_IMAGES}"));
    requestAnimationFrame(isWhole ? () => performance.mark("usable") : look);
  };
  requestAnimationFrame(look);
`;
const TRACED = ["toplevel", "disabled-by-default-devtools.timeline"];

/** The page with many images in a browser: the time until its tree can be used, and its costs. */
export async function* pageRows(host: BenchHost): AsyncGenerator<Finding> {
  const name = `the page with ${IMAGES_COUNT} images`;
  const executablePath = findProgram("chromium");
  if (executablePath === null) {
    yield missing(name, "chromium is not installed");
    return;
  }
  const { appliance } = host;
  const token = await appliance.createToken(ACCOUNT);
  await appliance.down();
  const fill = { account: ACCOUNT, operations: IMAGES_COUNT, images: IMAGES_COUNT, isForest: true };
  fillStore(dataLayout(appliance.dataDir), [fill]);
  await appliance.up();
  await host.target.poolFull();
  // Chromium's own sandbox does not start for root, and without a graphics card it would emulate one.
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  await using _browser = { [Symbol.asyncDispose]: () => browser.close() };
  const session = await signIn(browser, originOf(appliance.url), token);
  const opened: Opened[] = [];
  for (let round = 0; round < host.target.rounds(9, 3); round++) opened.push(await open(browser, session));
  // A browser that writes down its tasks is slower.
  const tasks: Tasks[] = [];
  for (let round = 0; round < host.target.rounds(3, 2); round++) tasks.push(await openTraced(browser, session));
  await using plain = await startStaticPage(await bundleBytes());
  const paints: number[] = [];
  for (let round = 0; round < host.target.rounds(9, 3); round++) paints.push(await firstPaint(browser, plain.url));
  yield rowOf({
    ...{
      name: `${name}, in a tree that can be used`,
      from: "a browser that has nothing of it asks for it",
      to: "all drawn",
    },
    ...{ values: opened.map(({ usableMs }) => usableMs), unit: "ms", atMost: 3 },
    against: { name: "first paint of a static page with as many bytes of files", values: paints },
    note: `first paint ${medianOf(opened, "paintMs")} ms, first images ${medianOf(opened, "firstMs")} ms`,
  });
  const task = { from: "begin of the longest task, time of the processor", to: "its end", unit: "ms", atMost: 50 };
  yield rowOf({ ...task, name: `${name}, while they come`, values: tasks.map(({ comingMs }) => comingMs) });
  yield rowOf({ ...task, name: `${name}, while they are moved`, values: tasks.map(({ movedMs }) => movedMs) });
  yield rowOf({
    ...{ name: `${name}, memory of the scripts`, from: "all drawn", to: "garbage collected" },
    ...{ values: opened.map(({ heapBytes }) => heapBytes / 1_048_576), unit: "MiB", atMost: HEAP_MIB_MAX },
  });
  yield rowOf({
    ...{ name: "files of the page, compressed", from: "a browser that has nothing of it", to: "every view shown" },
    ...{ values: [(await bundleBytes()) / 1024], unit: "KiB", atMost: 300 },
  });
}

/** From the request to the first paint, in a browser that has nothing of the page; in `milliseconds`. */
async function firstPaint(browser: Browser, url: string): Promise<number> {
  const context = await browser.newContext({ viewport: VIEW });
  await using _context = { [Symbol.asyncDispose]: () => context.close() };
  const page = await context.newPage();
  page.setDefaultTimeout(STEP_MS_MAX);
  await page.goto(url);
  const paint = `performance.getEntriesByName("first-contentful-paint")[0]?.startTime`;
  await page.waitForFunction(`${paint} !== undefined`);
  return (await page.evaluate(paint)) as number;
}

function medianOf(opened: readonly Opened[], name: keyof Opened): string {
  return median(opened.map((times) => times[name])).toFixed(0);
}

/** A browser has an address for a name: it looks none up. */
function originOf(url: string): string {
  return `http://127.0.0.1:${new URL(url).port}`;
}

async function bundleBytes(): Promise<number> {
  const { files } = JSON.parse(await readFile(join(webDirectory, "manifest.json"), "utf8")) as WebManifest;
  return Object.values(files).reduce((sum, { bytes }) => sum + bytes.br, 0);
}

interface Session {
  readonly origin: string;
  readonly state: Awaited<ReturnType<BrowserContext["storageState"]>>;
}

/** Signs in once: every further context has the cookie, and nothing else. */
async function signIn(browser: Browser, origin: string, token: string): Promise<Session> {
  const context = await browser.newContext({ baseURL: origin, locale: "en-GB" });
  await using _context = { [Symbol.asyncDispose]: () => context.close() };
  const page = await context.newPage();
  await page.goto("/appliance");
  await page.getByLabel(/token/i).fill(token);
  await page.getByRole("button", { name: /^sign in$/i }).click();
  await page.getByRole("navigation").first().waitFor({ timeout: STEP_MS_MAX });
  return { origin, state: await context.storageState() };
}

/** Times since the request for the page. */
interface Opened {
  readonly paintMs: number;
  readonly firstMs: number;
  readonly usableMs: number;
  readonly heapBytes: number;
}

/** Opens the page in a context of its own. */
async function open(browser: Browser, session: Session): Promise<Opened> {
  const context = await newContext(browser, session);
  await using _context = { [Symbol.asyncDispose]: () => context.close() };
  const page = await context.newPage();
  await show(page);
  const times = await page.evaluate(() => {
    const at = (name: string) => performance.getEntriesByName(name)[0]?.startTime ?? Number.NaN;
    return { paintMs: at("first-contentful-paint"), firstMs: at("first"), usableMs: at("usable") };
  });
  const tools = await context.newCDPSession(page);
  await tools.send("HeapProfiler.collectGarbage");
  const { usedSize } = await tools.send("Runtime.getHeapUsage");
  return { ...times, heapBytes: usedSize };
}

interface Tasks {
  readonly comingMs: number;
  readonly movedMs: number;
}

/** Processor time of the longest tasks of the page while the images come, and while the tree is moved and zoomed. */
async function openTraced(browser: Browser, session: Session): Promise<Tasks> {
  const context = await newContext(browser, session);
  await using _context = { [Symbol.asyncDispose]: () => context.close() };
  const page = await context.newPage();
  const comingMs = await longestTask(browser, page, () => show(page));
  const movedMs = await longestTask(browser, page, () => move(page));
  return { comingMs, movedMs };
}

function newContext(browser: Browser, { origin, state }: Session): Promise<BrowserContext> {
  return browser.newContext({ baseURL: origin, locale: "en-GB", storageState: state, viewport: VIEW });
}

/** Opens the branches, and waits until all images are drawn; the page writes down when that was. */
async function show(page: Page): Promise<void> {
  page.setDefaultTimeout(STEP_MS_MAX);
  await page.addInitScript({ content: WATCH });
  await page.goto("/");
  await page.waitForFunction(() => performance.getEntriesByName("usable").length > 0);
}

/** Moves the tree with the pointer, and zooms it out and in with the wheel. */
async function move(page: Page): Promise<void> {
  const { mouse } = page;
  const middle = { x: VIEW.width / 2, y: VIEW.height / 2 };
  for (const way of WAYS) {
    await mouse.move(middle.x, middle.y);
    await mouse.down();
    await mouse.move(middle.x + way.x, middle.y + way.y, { steps: WAY_STEPS });
    await mouse.up();
  }
  await page.keyboard.down("Control");
  for (let step = 0; step < WAY_STEPS; step++) await mouse.wheel(0, step < WAY_STEPS / 2 ? ZOOM_PX : -ZOOM_PX);
  await page.keyboard.up("Control");
}

/** Processor time of the longest task of the page's main thread during some work, in `milliseconds`. */
async function longestTask(browser: Browser, page: Page, work: () => Promise<void>): Promise<number> {
  await browser.startTracing(page, { categories: TRACED });
  await work();
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString()) as { traceEvents: TraceEvent[] };
  const pages = new Set(traceEvents.flatMap(({ args }) => processesOf(args?.data)));
  const threads = traceEvents.filter(({ name, args }) => name === "thread_name" && args?.name === "CrRendererMain");
  const tasks = threads.flatMap(({ pid, tid }) =>
    traceEvents.filter((event) => event.name === "RunTask" && event.tid === tid && event.pid === pid && pages.has(pid)),
  );
  if (tasks.length === 0) throw new Error("the browser has told of no task");
  return Math.max(...tasks.map(({ tdur = 0 }) => tdur)) / 1000;
}

/** An event as Chromium writes it down. */
interface TraceEvent {
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  /** time of a processor, in `microseconds`: other programs of a busy machine have no part in it */
  readonly tdur?: number;
  readonly args?: {
    readonly name?: string;
    readonly data?: TracedFrame & { readonly frames?: readonly TracedFrame[] };
  };
}

/** A frame that there is when the trace begins, or that comes, in its process. */
interface TracedFrame {
  readonly url?: string;
  readonly processId?: number;
}

/** Processes that show the page: the browser has pages of its own. */
function processesOf(data: NonNullable<TraceEvent["args"]>["data"]): number[] {
  const frames = data === undefined ? [] : [data, ...(data.frames ?? [])];
  return frames.flatMap(({ url, processId }) =>
    url?.startsWith("http://127.0.0.1:") === true && processId !== undefined ? [processId] : [],
  );
}
