import { Type } from "@sinclair/typebox";
import { ApiError } from "../../domain/errors.ts";
import type { GrepLine } from "../../domain/tree/grep.ts";
import {
  type ByteString,
  byteStringToBytes,
  displayName,
  type GuestPath,
  parseGuestPathText,
} from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import type { BlamedEntry, PathStep } from "../../service/branches/path-history.ts";
import type { Difference } from "../../service/images.ts";
import { answer, text } from "./answer.ts";
import { LIST_COUNT_DEFAULT, LIST_COUNT_MAX, nextPage, OFFSET, stepLine } from "./image-tools.ts";
import { fileUri } from "./resources.ts";
import { cutLine, fileText, isBinary, shownBytes, shownName } from "./text.ts";
import { IMAGE, imageId, inputs, integer, optional, READS, type Tool, type ToolCall, tool } from "./tool.ts";

const ENTRIES_COUNT_DEFAULT = 200;
const MATCHES_COUNT_DEFAULT = 30;
const DIFFERENCES_COUNT_DEFAULT = 100;
const READ_BYTES_DEFAULT = 16_384;
const READ_BYTES_MAX = 65_536;
const LINE_CHARACTERS_MAX = 200;
const CURSOR_CHARACTERS_MAX = 400;

const PATH = Type.String({ maxLength: 4096, description: "absolute" });
const ROOT_PATH = Type.String({ maxLength: 4096, default: "/" });

/** `name/`, `name -> target`, or `name` with the size of a file. */
export function entryText(
  name: ByteString,
  { type, size, mode, target }: Pick<Entry, "type" | "size"> & Partial<Entry>,
): string {
  const label = shownName(displayName(name));
  if (type === "d") return `${label}/`;
  if (type === "l")
    return target === undefined ? `${label} (symlink)` : `${label} -> ${shownName(displayName(target))}`;
  if (type !== "f") return `${label} (special)`;
  return `${label}${((mode ?? 0) & 0o111) === 0 ? "" : "*"} ${size}`;
}

const CHANGES: Readonly<Record<Difference["change"], string>> = { added: "A", removed: "D", changed: "M" };

function differenceText({ path, change, now, before }: Difference): string {
  const entry = (now ?? before)?.entry;
  const label = entry === undefined ? shownName(displayName(path)) : entryText(path, entry);
  const size = now?.entry.type === "f" && before?.entry.type === "f" ? ` (was ${before.entry.size})` : "";
  return `${CHANGES[change]} ${label}${size}`;
}

/** The end of a page, in the form that the caller sends back. */
const cursorOf = (path: GuestPath): string => Buffer.from(path, "latin1").toString("base64url");
const pathOfCursor = (cursor: string): GuestPath => Buffer.from(cursor, "base64url").toString("latin1") as GuestPath;

export const FILE_TOOLS: readonly Tool[] = [
  tool({
    name: "list_files",
    description: "List a directory of an image, by name: `dir/`, `file size`, `program* size`, `link -> target`.",
    input: inputs({
      image: IMAGE,
      path: optional(ROOT_PATH),
      limit: optional(integer(1, 1000, { default: ENTRIES_COUNT_DEFAULT })),
      offset: optional(OFFSET),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, path = "/", limit = ENTRIES_COUNT_DEFAULT, offset = 0 }, call) {
      const target = { id: imageId(call, image), path: parseGuestPathText(path), signal: call.signal };
      const { entries, held } = await call.service.inspect.list(call.principal, target);
      using _held = held;
      const lines: string[] = [];
      let at = 0;
      for await (const entry of entries) {
        if (at++ < offset) continue;
        if (lines.length === limit) return answer(...lines, ...nextPage(limit, limit, offset));
        lines.push(entryText(entry.name, entry));
      }
      return answer(...(lines.length > 0 ? lines : [offset > 0 ? "no more" : "the directory is empty"]));
    },
  }),
  tool({
    name: "read_file",
    description: "Read a file of an image, or a range of it.",
    input: inputs({
      image: IMAGE,
      path: PATH,
      offset: optional(OFFSET),
      length: optional(integer(1, READ_BYTES_MAX, { default: READ_BYTES_DEFAULT, description: "bytes" })),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, path, offset = 0, length = READ_BYTES_DEFAULT }, call) {
      return await readFile(call, { image, path, offset, length });
    },
  }),
  tool({
    name: "search",
    description:
      "Search the files of an image. With pattern: lines that match this regular expression (RE2), in files that match glob. " +
      "Without: paths whose name matches glob.",
    input: inputs({
      image: IMAGE,
      pattern: optional(Type.String({ minLength: 1, maxLength: 1000 })),
      glob: optional(Type.String({ minLength: 1, maxLength: 256, description: "e.g. *.py, src/**/*.c" })),
      path: optional(ROOT_PATH),
      context: optional(integer(0, 20, { default: 0, description: "lines around a match" })),
      limit: optional(integer(1, 200, { default: MATCHES_COUNT_DEFAULT })),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, pattern, glob, path = "/", context = 0, limit = MATCHES_COUNT_DEFAULT }, call) {
      const { service, principal, signal } = call;
      const below = parseGuestPathText(path);
      const id = imageId(call, image);
      if (pattern !== undefined) {
        const globs = glob === undefined ? [] : [glob];
        const { lines, bounds } = await service.inspect.grep(principal, {
          id,
          signal,
          limit,
          globs,
          paths: [below],
          patterns: [pattern],
          matchCase: "sensitive",
          fileLimit: null,
          before: context,
          after: context,
          ranges: false,
        });
        const texts: string[] = [];
        for await (const line of lines) texts.push(matchText(line));
        return answer(...(texts.length > 0 ? texts : ["no line matches"]), ...boundText(bounds));
      }
      if (glob === undefined) throw new ApiError("validation_error", "search needs a pattern, a glob, or both");
      const search = { id, signal, limit, path: below, glob };
      const { paths, isComplete } = await service.inspect.find(principal, search);
      const lines = paths.map(({ path: name, entry }) => entryText(name, entry));
      return answer(...(lines.length > 0 ? lines : ["no name matches"]), ...boundText(isComplete ? [] : ["limit"]));
    },
  }),
  tool({
    name: "diff",
    description:
      "List the paths that an image added (A), modified (M) or deleted (D) against its parent or another image.",
    input: inputs({
      image: IMAGE,
      against: optional(IMAGE),
      limit: optional(integer(1, LIST_COUNT_MAX, { default: DIFFERENCES_COUNT_DEFAULT })),
      cursor: optional(Type.String({ maxLength: 6000, description: "of the page before" })),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, against, limit = DIFFERENCES_COUNT_DEFAULT, cursor }, call) {
      const query = {
        id: imageId(call, image),
        against: against === undefined ? null : imageId(call, against),
        after: cursor === undefined ? null : pathOfCursor(cursor),
        limit,
        signal: call.signal,
      };
      const { differences, next, against: other } = await call.service.images.diff(call.principal, query);
      const base = other === null ? "an empty image" : `image ${other}`;
      const lines = differences.map(differenceText);
      const more = next === null ? [] : [`(there is more: cursor ${cursorOf(next)})`];
      return answer(`against ${base}:`, ...(lines.length > 0 || next !== null ? lines : ["no difference"]), ...more);
    },
  }),
  tool({
    name: "path_history",
    description: "Who changed a path of an image, newest first; entries: last change of each entry.",
    input: inputs({
      image: IMAGE,
      path: Type.String(),
      entries: optional(Type.Boolean()),
      cursor: optional(Type.String({ maxLength: CURSOR_CHARACTERS_MAX })),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, path, entries = false, cursor = "" }, call) {
      const { service, principal, signal } = call;
      const page = { id: imageId(call, image), path: parseGuestPathText(path), limit: LIST_COUNT_DEFAULT, signal };
      if (!entries) {
        const from = /^\d{1,9}$/.test(cursor) ? Number(cursor) : 0;
        const { items, next } = await service.branches.pathLog(principal, { ...page, from });
        return answer(...items.map(changeLine), ...(next === null ? [] : more(String(next))));
      }
      const after = cursor === "" ? null : (Buffer.from(cursor, "base64url").toString("latin1") as ByteString);
      const { items, steps, next } = await service.branches.blame(principal, { ...page, after });
      const lines = items.map(entryLine);
      return answer(
        ...(lines.length > 0 ? lines : ["no entries"]),
        "images:",
        ...steps.map(stepLine),
        ...(next === null ? [] : more(byteStringToBytes(next).toString("base64url"))),
      );
    },
  }),
];

/** The line with the cursor of the next page. */
const more = (cursor: string): string[] => [`(there is more: cursor ${cursor})`];

/** Says that another step may have made a change. */
const unknownText = (count: number): string => (count === 0 ? "" : ` (or one of ${count} deleted states before it)`);

function changeLine({ step, change: { kind, isBelow }, unknownCount }: PathStep): string {
  return `${isBelow ? "something in it changed" : kind} by ${stepLine(step)}${unknownText(unknownCount)}`;
}

function entryLine({ entry, last }: BlamedEntry): string {
  const name = entryText(entry.name, entry);
  if (last === null) return `${name}: not found in time`;
  return `${name}: ${last.change.isBelow ? "modified below" : last.change.kind} by ${last.imageId}${unknownText(last.unknownCount)}`;
}

/** `path:line: text`; a line of the context has hyphens, as `grep` shows it. */
function matchText({ path, line, bytes, kind }: GrepLine): string {
  const mark = kind === "match" ? ":" : "-";
  const lineText = cutLine(shownName(fileText(bytes).text), LINE_CHARACTERS_MAX);
  return `${shownName(displayName(path))}${mark}${line}${mark} ${lineText}`;
}

function boundText(bounds: readonly string[]): string[] {
  return bounds.length === 0
    ? []
    : [`(not complete, because of: ${bounds.join(", ")}; narrow path or glob, or raise limit)`];
}

interface ReadInput {
  readonly image: string;
  readonly path: string;
  readonly offset: number;
  readonly length: number;
}

async function readFile(call: ToolCall, { image, path, offset, length }: ReadInput) {
  const id = imageId(call, image);
  const target = { id, path: parseGuestPathText(path), signal: call.signal };
  const file = await call.service.inspect.open(call.principal, target);
  using _held = file.held;
  const { size } = file.entry;
  const start = Math.min(offset, size);
  const end = Math.min(start + length, size);
  const bytes = await file.read({ start, end });
  const name = shownName(displayName(target.path));
  const uri = fileUri(id, target.path);
  const link = { type: "resource_link", uri, name: path.split("/").at(-1) ?? "", size } as const;
  const range = start === 0 && end === size ? shownBytes(size) : `bytes ${start} to ${end} of ${size}`;
  const rest = end < size ? `; next offset ${end}` : "";
  const links = start === 0 && end === size ? [] : [link];
  if (isBinary(bytes)) return { content: [text(`${name}: binary, ${shownBytes(size)}; the resource has it`), link] };
  const fileContent = fileText(bytes);
  const hidden =
    fileContent.hiddenCount === 0 ? "" : `; ${fileContent.hiddenCount} control or invisible characters are not shown`;
  return { content: [text(`${name}: ${range}${rest}${hidden}`), text(fileContent.text), ...links] };
}
