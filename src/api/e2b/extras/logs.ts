import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { given } from "../../../domain/given.ts";
import { isoTimeNs, type LogEvent, msOf } from "../../../domain/log-event.ts";
import type { EventStream } from "../../../service/events.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { liveSandbox } from "../control/life.ts";
import type { E2bParts } from "../options.ts";

const ENTRIES_COUNT_MAX = 1000;
const SEARCH_LENGTH_MAX = 256;
const LOGGER = "coppice";
const LEVELS = ["debug", "info", "warn", "error"] as const;
type Level = (typeof LEVELS)[number];

const ms = (name: string) =>
  Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      error: `${name} must be a time in milliseconds since the epoch`,
    }),
  );
const Limit = Type.Optional(
  Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, error: "limit must be an integer of at least 0" }),
);
const OldQuery = Type.Object({ start: ms("start"), limit: Limit });
const Query = Type.Object({
  cursor: ms("cursor"),
  limit: Limit,
  direction: Type.Optional(
    Type.Union([Type.Literal("forward"), Type.Literal("backward")], { error: "direction must be forward or backward" }),
  ),
  level: Type.Optional(
    Type.Union(
      LEVELS.map((level) => Type.Literal(level)),
      { error: `level must be one of ${LEVELS.join(", ")}` },
    ),
  ),
  search: Type.Optional(
    Type.String({ maxLength: SEARCH_LENGTH_MAX, error: `search must have at most ${SEARCH_LENGTH_MAX} characters` }),
  ),
});

export function logRoutes(parts: E2bParts) {
  const { access, service } = parts;
  const open = (context: Context) => {
    const { id } = liveSandbox(parts, context.principal, context.params.sandboxID).sandbox;
    const { signal } = context.request;
    return service.sandboxes.eventArray(context.principal, id, { since: -1, follow: false, signal });
  };
  return new Elysia()
    .use(access)
    .get(
      "/sandboxes/:sandboxID/logs",
      async (context) => {
        const { start, limit } = context.query;
        using events = await open(context);
        const logEntries = await entriesOf(events, { ...given({ cursor: start, limit }), direction: "forward" });
        const logs = logEntries.map((entry) => ({ timestamp: entry.timestamp, line: lineOf(entry) }));
        return respond(json(200, { logs, logEntries }), context.request) as never;
      },
      { reads: "operations:read", query: checked(OldQuery) },
    )
    .get(
      "/v2/sandboxes/:sandboxID/logs",
      async (context) => {
        using events = await open(context);
        return respond(json(200, { logs: await entriesOf(events, context.query) }), context.request) as never;
      },
      { reads: "operations:read", query: checked(Query) },
    );
}

interface Context {
  readonly request: Request;
  readonly principal: Parameters<E2bParts["service"]["sandboxes"]["get"]>[0];
  readonly params: { readonly sandboxID: string };
}

interface Entry {
  readonly timestamp: string;
  readonly message: string;
  readonly level: Level;
  readonly fields: Readonly<Record<string, string>>;
}

/**
 * The events of a log as entries: the first ones after the cursor; `backward`, the last ones before it, the latest first.
 * The whole log is read in pieces, and at most `limit` entries are in memory.
 */
async function entriesOf(
  events: EventStream,
  { cursor, limit = ENTRIES_COUNT_MAX, direction = "forward", level = "debug", search = "" }: Static<typeof Query>,
): Promise<Entry[]> {
  const isForward = direction === "forward";
  const countMax = Math.min(limit, ENTRIES_COUNT_MAX);
  const isIn = (event: LogEvent): boolean =>
    cursor === undefined || (isForward ? msOf(event.timeNs) >= cursor : msOf(event.timeNs) <= cursor);
  const entries: Entry[] = [];
  while (!isForward || entries.length < countMax) {
    const next = await events.next();
    if (next === null) break;
    const fitting = next
      .filter(isIn)
      .map(entryOf)
      .filter((entry) => LEVELS.indexOf(entry.level) >= LEVELS.indexOf(level) && entry.message.includes(search));
    entries.push(...fitting);
    if (!isForward) entries.splice(0, entries.length - countMax);
  }
  return isForward ? entries.slice(0, countMax) : entries.reverse();
}

/** Clients read a line as JSON with these keys. */
function lineOf({ message, level, fields }: Entry): string {
  return JSON.stringify({ level, logger: LOGGER, message, ...fields });
}

function entryOf({ type, spid, timeNs, payload }: LogEvent): Entry {
  const fields = { event: type, ...(spid === null ? {} : { process: String(spid) }) };
  return {
    timestamp: isoTimeNs(timeNs),
    level: "info",
    fields,
    ...worded(type, Buffer.from(payload).toString("utf8")),
  };
}

function worded(type: LogEvent["type"], text: string): Pick<Entry, "message"> & Partial<Pick<Entry, "level">> {
  if (type === "stdout" || type === "stderr") return { message: text.replace(/\n$/, "") };
  if (type !== "state") return { message: `${type} ${text}` };
  const { to } = JSON.parse(text) as { readonly to: string };
  return { message: `the sandbox is ${to}`, ...(to === "failed" ? { level: "error" } : {}) };
}
