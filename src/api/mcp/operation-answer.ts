import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import {
  isTerminal,
  type StoredImportResult,
  type StoredInstanceResult,
  type StoredSandboxResult,
} from "../../domain/operation.ts";
import type { OutputStream } from "../../domain/output.ts";
import { allows, type Scope } from "../../domain/scope.ts";
import type { Operation } from "../../service/operations.ts";
import { type Answer, type Content, facts, text } from "./answer.ts";
import { followed } from "./following.ts";
import { type Reading, shownOutput } from "./output.ts";
import { shownBytes, shownName, shownSeconds } from "./text.ts";
import type { ToolCall } from "./tool.ts";

const READING: Scope = "operations:read";

/**
 * Waits for an operation that a call has started, and answers its result. That needs the scope for reading operations:
 * without it, the answer is sent at once and has only the id.
 * @throws ApiError as `followed` does
 */
export async function outcome(
  call: ToolCall,
  id: OperationId,
  { waitSeconds, bytesMax }: { readonly waitSeconds: number; readonly bytesMax: number },
): Promise<Answer> {
  if (allows(call.principal.grants, READING)) {
    return await operationAnswer(call, await followed(call, id, waitSeconds), bytesMax);
  }
  const line = `operation ${id} was accepted and continues; the token does not allow ${READING}, so its result is not shown`;
  return facts(line, { operation: id });
}

/** An operation as an answer: how it ended or what it does, what to do next, and its outputs in short. */
export async function operationAnswer(reading: Reading, operation: Operation, bytesMax: number): Promise<Answer> {
  const lines = isTerminal(operation.status) ? endLines(operation) : runningLines(operation);
  const isFailed = operation.status === "FAILED";
  return {
    content: [text(lines.join("\n")), ...(await outputItems(reading, operation, bytesMax))],
    _meta: { "coppice/operation": factsOf(operation) },
    ...(isFailed ? { isError: true } : {}),
  };
}

async function outputItems(reading: Reading, operation: Operation, bytesMax: number): Promise<Content[]> {
  if (operation.kind !== "instance" || operation.startedAt === null) return [];
  // stdout gets the room that a short stderr leaves.
  const half = Math.floor(bytesMax / 2);
  const output = async (stream: OutputStream, bytes: number) =>
    await shownOutput(reading, operation, { stream, bytesMax: bytes });
  try {
    const stderr = await output("stderr", half);
    const stdout = await output("stdout", bytesMax - Math.min(half, stderr.totalBytes));
    const items = [...stdout.items, ...stderr.items];
    return items.length === 0 && isTerminal(operation.status) ? [text("no output")] : items;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // Too many clients read. The rest of the answer is complete, and only its id leads to the operation.
    return [text(`its output cannot be read now (${error.message}): try read_output in some seconds`)];
  }
}

function runningLines({ id, kind, status, startedAt }: Operation): string[] {
  const since = startedAt === null ? "" : `, ${shownSeconds(Date.now() - startedAt)} after its start`;
  const state = status === "PENDING" ? "waits for a machine" : `still runs${since}`;
  const also =
    kind === "instance" ? "; read_output reads all of its output, checkpoint makes an image of its files" : "";
  return [`operation ${id} ${state}: follow waits for it, end stops it${also}`];
}

function endLines(operation: Operation): string[] {
  const { id, kind, status, error } = operation;
  if (status === "CANCELLED") return [`operation ${id} was cancelled; it made no image`];
  if (status === "FAILED") {
    const { error: code = "internal_error", message = "" } = (error ?? {}) as { error?: string; message?: string };
    return [`operation ${id} failed (${code}): ${shownName(message)}`, failureStep(code, kind)];
  }
  if (kind === "instance") return runLines(operation);
  if (kind === "sandbox") return [sandboxLine(operation)];
  const { image, tag, ...figures } = operation.result as StoredImportResult;
  const tagged = tag === undefined ? "" : `, tag ${tag}`;
  const digest = figures.digest === undefined ? "" : `, digest ${figures.digest}`;
  return [`image ${image}${tagged}: ${shownBytes(figures.size_bytes)}${digest}`, "run starts commands from it"];
}

function failureStep(code: string, kind: Operation["kind"]): string {
  if (kind === "image_import") {
    return "Check the host, the repository and the tag of the reference; if they are right, try again later.";
  }
  if (code === "unavailable" || code === "too_many_requests") return "Wait some seconds, then try again.";
  return "The service failed, not the command; it can be tried again.";
}

function runLines({ id, imageId, result, startedAt, finishedAt }: Operation): string[] {
  const { exit_code: code, timed_out: timedOut, oom_killed: outOfMemory, image, tag } = result as StoredInstanceResult;
  const time = startedAt === null || finishedAt === null ? "" : ` after ${shownSeconds(finishedAt - startedAt)}`;
  const why = [
    ...(timedOut ? ["it exceeded its timeout and was killed: run it with a longer one"] : []),
    ...(outOfMemory === true ? ["it ran out of memory: run it with more memory_mib"] : []),
  ];
  const kept =
    image === undefined
      ? "its files were not kept (disposable)"
      : keptText({ image, tag, isUnchanged: image === imageId });
  return [[`exit code ${code}${time}`, ...why].join("; "), kept, `operation ${id}`];
}

/** The end of a machine of a sandbox. */
function sandboxLine({ id, result }: Operation): string {
  const { image } = result as StoredSandboxResult;
  const kept = image === undefined ? "its files since the head were given up" : `image ${image} has its files`;
  return `operation ${id}, a machine of a sandbox, has ended: ${kept}; sandbox_list shows the sandbox`;
}

interface Kept {
  readonly image: string;
  readonly tag: string | undefined;
  /** true: it is the image on which the command ran */
  readonly isUnchanged: boolean;
}

function keptText({ image, tag, isUnchanged }: Kept): string {
  if (isUnchanged) return `it changed no file: image ${image} is as it was`;
  return `image ${image}${tag === undefined ? "" : `, tag ${tag},`} has its files: run from it to continue, or from the image before to try again`;
}

/** Ids and figures for programs. */
function factsOf({ id, kind, status, result }: Operation): Record<string, unknown> {
  const fields = (result ?? {}) as Partial<StoredInstanceResult & StoredImportResult>;
  const { exit_code, timed_out, image, tag, digest } = fields;
  const data = { exit_code, timed_out, image, tag, digest };
  return { id, kind, status, ...(status === "SUCCESS" ? data : {}) };
}
