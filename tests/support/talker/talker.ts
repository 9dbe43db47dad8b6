import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { busyboxImage, type ImageSpec } from "../images/images.ts";

const SOURCE = join(import.meta.dir, "talker.c");
const COMPILE_MS = 60_000;
/** Of a line in a message. */
const LINE_CHARACTERS_MAX = 200;
/** As in `talker.c`. */
const CELLS_COUNT = 8192;
const STREAMS = ["stdout", "stderr"] as const;
type Stream = (typeof STREAMS)[number];
const NAMES: Readonly<Record<Stream, string>> = { stdout: "out", stderr: "err" };

export const TALKER = "/bin/talker";

/** Compiles `talker.c` to a static program in the directory, and returns its path. */
export async function compileTalker(directory: string): Promise<string> {
  const program = join(directory, "talker");
  const argv = ["musl-gcc", "-static", "-s", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE];
  await run({ argv, timeoutMs: COMPILE_MS });
  return program;
}

/** The image of busybox, with the program `talker.c` as `TALKER`. */
export async function talkerImage(): Promise<ImageSpec> {
  await using directory = await scratchDirectory(tmpdir(), "coppice-talker-");
  const content = await readFile(await compileTalker(directory.path));
  const { layers } = await busyboxImage();
  return { layers: [[...(layers[0] ?? []), { path: TALKER.slice(1), mode: 0o755, content }]] };
}

/** The place in the output of a talker, from which a fork of it continues. */
export interface TalkerPlace {
  /** number of whole lines */
  readonly count: number;
  /** the bytes after them */
  readonly rest: string;
  readonly generation: number;
}

const BEGIN: TalkerPlace = { count: 0, rest: "", generation: 0 };

function mix(value: number): number {
  let mixed = value ^ (value >>> 16);
  mixed = Math.imul(mixed, 0x7feb352d);
  mixed ^= mixed >>> 15;
  mixed = Math.imul(mixed, 0x846ca68b);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

function fnv(text: string): number {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return hash >>> 0;
}

const hex = (value: number): string => value.toString(16).padStart(8, "0");

/** One output of a talker, as it must be: each line exactly once, in order, from an intact memory. */
class TalkerStream {
  readonly #name: string;
  readonly #label: string;
  readonly cells: Uint32Array;
  place: TalkerPlace;

  constructor(name: string, stream: Stream, place: TalkerPlace) {
    this.#name = name;
    this.#label = NAMES[stream];
    this.place = place;
    const seed = fnv(name);
    const number = STREAMS.indexOf(stream);
    this.cells = Uint32Array.from({ length: CELLS_COUNT }, (_, at) => mix(seed ^ mix(at) ^ number));
    for (let count = 1; count <= place.count; count++) this.#change(count);
  }

  /** The line that must follow, in the generation of the one before it. */
  get next(): string {
    const { count, generation } = this.place;
    return `${this.#line(count + 1, generation)}\n`;
  }

  /** Reads more of the output; returns lines that are not those that must follow. */
  read(text: string): string[] {
    let { count, generation } = this.place;
    const lines = (this.place.rest + text).split("\n");
    const rest = lines.pop() ?? "";
    for (const line of lines) {
      const now = Number(line.split(" ", 4)[3]);
      const right = this.#line(count + 1, now);
      if (line !== right || !(now >= generation)) {
        const [want, was] = [right, line.slice(0, LINE_CHARACTERS_MAX)];
        return [`${this.#name} ${this.#label}: "${was}" in place of "${want}", generation ${generation}`];
      }
      count += 1;
      generation = now;
      this.#change(count);
      this.place = { count, rest: "", generation };
    }
    this.place = { count, rest, generation };
    return [];
  }

  #line(count: number, generation: number): string {
    const head = `${this.#name} ${this.#label} ${count} ${generation} ${hex(this.#cell(count))} `;
    return head + hex(fnv(head));
  }

  #cell(count: number): number {
    return this.cells[count % CELLS_COUNT] ?? 0;
  }

  #change(count: number): void {
    this.cells[count % CELLS_COUNT] = mix(this.#cell(count) ^ count);
  }
}

/** Both outputs of a talker, from its start or from a fork. */
export class TalkerOutput {
  readonly name: string;
  readonly #streams: Readonly<Record<Stream, TalkerStream>>;
  /** the last line was read */
  isEnded = false;

  constructor(name: string, places: Readonly<Record<Stream, TalkerPlace>> = { stdout: BEGIN, stderr: BEGIN }) {
    this.name = name;
    this.#streams = {
      stdout: new TalkerStream(name, "stdout", places.stdout),
      stderr: new TalkerStream(name, "stderr", places.stderr),
    };
  }

  /** Number of whole lines of both outputs. */
  get lines(): number {
    return this.#streams.stdout.place.count + this.#streams.stderr.place.count;
  }

  get generation(): number {
    return Math.max(this.#streams.stdout.place.generation, this.#streams.stderr.place.generation);
  }

  place(stream: Stream): TalkerPlace {
    return this.#streams[stream].place;
  }

  /** Returns the next line of an output, which counts as read then. */
  next(stream: Stream): string {
    const line = this.#streams[stream].next;
    this.#streams[stream].read(line);
    return line;
  }

  /** Reads more of an output; returns what is lost, repeated, or damaged. */
  read(stream: Stream, text: string): string[] {
    if (this.isEnded && stream === "stdout")
      return [`${this.name}: output after the last line: "${text.slice(0, LINE_CHARACTERS_MAX)}"`];
    const own = this.#streams[stream];
    const all = own.place.rest + text;
    const at = stream === "stdout" ? all.indexOf(`${this.name} end `) : -1;
    if (at < 0 || !all.endsWith("\n")) return own.read(text);
    // The last line can come with others.
    const before = all.slice(own.place.rest.length, Math.max(at, own.place.rest.length));
    const problems = own.read(before);
    this.#last = all.slice(at);
    this.isEnded = true;
    return problems;
  }

  #last = "";

  /** The end of a talker that has ended by itself, and both of whose outputs were read to their ends. */
  end(): string[] {
    const { stdout, stderr } = this.#streams;
    let sum = 0;
    for (const { cells } of [stdout, stderr]) for (const cell of cells) sum = mix(sum ^ cell);
    const expected = `${this.name} end ${stdout.place.count} ${stderr.place.count} ${hex(sum)}\n`;
    if (this.#last === expected && stderr.place.rest === "") return [];
    return [`${this.name}: the last line is "${this.#last.trimEnd()}" in place of "${expected.trimEnd()}"`];
  }
}
