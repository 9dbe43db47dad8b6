import { highlight } from "./highlight.ts";
import type { AnswerMessage, JobMessage, JobName, Jobs } from "./messages.ts";
import { compare } from "./text-diff.ts";
import { readText } from "./text-lines.ts";

const HANDLERS: { readonly [Name in JobName]: (request: Jobs[Name]["request"]) => Jobs[Name]["reply"] } = {
  text: readText,
  highlight,
  diff: compare,
};

/** The used part of the worker's global scope; the type library for workers contradicts that for pages. */
const scope = globalThis as unknown as {
  onmessage: ((event: MessageEvent<JobMessage>) => void) | null;
  postMessage(message: AnswerMessage, transfer: Transferable[]): void;
};

scope.onmessage = ({ data: { id, job, request } }) => {
  try {
    const reply = (HANDLERS[job] as (request: unknown) => Jobs[JobName]["reply"])(request);
    scope.postMessage({ id, reply }, buffersOf(reply));
  } catch (error) {
    scope.postMessage({ id, problem: error instanceof Error ? error.message : String(error) }, []);
  }
};

/** Buffers of a reply, which move to the page in place of being copied. */
function buffersOf(reply: object): Transferable[] {
  return Object.values(reply).flatMap((value: unknown) => {
    if (value instanceof Uint32Array) return [value.buffer];
    return typeof value === "object" && value !== null ? buffersOf(value) : [];
  });
}
