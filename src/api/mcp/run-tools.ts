import { type Static, Type } from "@sinclair/typebox";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import type { NetworkInput } from "../../domain/network.ts";
import { KIND_FACTS, OPERATION_KINDS, OPERATION_STATUSES } from "../../domain/operation.ts";
import type { FileInput } from "../../domain/spawn.ts";
import { parseRuleText } from "../../network/rules.ts";
import { answer, facts, text } from "./answer.ts";
import { endIfLeft } from "./ending.ts";
import { followed, WAIT_SECONDS_DEFAULT } from "./following.ts";
import { LIMIT, LIST_COUNT_DEFAULT, nextPage, OFFSET, requireTag, TAG, WAIT_SECONDS } from "./image-tools.ts";
import { operationAnswer, outcome } from "./operation-answer.ts";
import { outputChunks, rangeOf, SHOWN_BYTES_DEFAULT, SHOWN_BYTES_MAX } from "./output.ts";
import { requireScope } from "./problem.ts";
import { cutLine, isBinary, outputText, shownBytes, shownName } from "./text.ts";
import {
  ADDS,
  DESTROYS,
  IMAGE,
  imageId,
  inputs,
  integer,
  OPERATION,
  operationId,
  optional,
  READS,
  type Tool,
  type ToolCall,
  tool,
} from "./tool.ts";

const REASON_CHARACTERS_MAX = 120;
export const BYTES_OF_MIB = 1_048_576;
const FILES_COUNT_MAX = 64;
export const CONTENT_CHARACTERS_MAX = 1_500_000;

export const OUTPUT_BYTES = integer(256, SHOWN_BYTES_MAX, {
  default: SHOWN_BYTES_DEFAULT,
  description: "output shown: its head and tail",
});
export const MODE = Type.String({ pattern: "^[0-7]{4}$", error: "mode must be four octal digits", default: "0644" });

const RUN_FILE = Type.Object(
  {
    path: Type.String({ maxLength: 4096, description: "absolute" }),
    content: Type.Optional(Type.String({ maxLength: CONTENT_CHARACTERS_MAX, description: "text" })),
    file: Type.Optional(Type.String({ maxLength: 36, description: "id from upload_file, instead of content" })),
    mode: Type.Optional(MODE),
  },
  { additionalProperties: false },
);

/** Stores content as a file, and returns its id. */
async function stored({ service, principal }: ToolCall, content: Uint8Array): Promise<{ id: string; sha256: string }> {
  requireScope(principal, "files:write");
  return await service.files.upload(principal, {
    announcedBytes: content.byteLength,
    content: (async function* () {
      yield content;
    })(),
  });
}

type RunFile = { path: string; content?: string; file?: string; mode?: string };

async function inputFiles(call: ToolCall, files: readonly RunFile[]): Promise<Record<string, FileInput>> {
  const inputs: Record<string, FileInput> = {};
  for (const { path, content, file, mode } of files) {
    if ((content === undefined) === (file === undefined)) {
      throw new ApiError("validation_error", `files: ${shownName(path)} must have either content or file`);
    }
    if (path in inputs) throw new ApiError("validation_error", `files: ${shownName(path)} is given twice`);
    const fileId = file ?? (await stored(call, Buffer.from(content ?? "", "utf8"))).id;
    inputs[path] = { fileId, ...given({ mode }) };
  }
  return inputs;
}

/** @throws ApiError `validation_error` */
export function networkOf(hosts: "all" | readonly string[] = []): NetworkInput | "ceiling" {
  if (hosts === "all") return "ceiling";
  return hosts.length === 0 ? "none" : { allow: hosts.map(parseRuleText) };
}

export const NETWORK = Type.Union(
  [Type.Literal("all"), Type.Array(Type.String({ maxLength: 300 }), { maxItems: 64 })],
  {
    description: 'hosts to reach, e.g. ["example.org:443"]; all: what the operator allows; default: none',
    error: "network must be all, or an array of hosts",
  },
);

const RUN_INPUT = inputs({
  image: IMAGE,
  command: Type.String({ minLength: 1, maxLength: 131_071, description: "for /bin/sh -c" }),
  files: optional(
    Type.Array(RUN_FILE, { maxItems: FILES_COUNT_MAX, description: "files to write before the command" }),
  ),
  env: optional(Type.Record(Type.String(), Type.String())),
  cwd: optional(Type.String({ maxLength: 4096, description: "default: the image's, or /" })),
  stdin: optional(Type.String({ maxLength: CONTENT_CHARACTERS_MAX })),
  timeout: optional(Type.Integer({ minimum: 1, default: 300, description: "seconds" })),
  memory_mib: optional(Type.Integer({ minimum: 1 })),
  network: optional(NETWORK),
  disposable: optional(Type.Boolean({ default: false, description: "keep no files" })),
  tag: optional(TAG),
  detach: optional(Type.Boolean({ default: false, description: "cancelling this call does not end the run" })),
  wait_seconds: optional(WAIT_SECONDS),
  output_bytes: optional(OUTPUT_BYTES),
});

/** Accepts a run. @throws ApiError */
async function spawned(input: Static<typeof RUN_INPUT>, call: ToolCall): Promise<OperationId> {
  const { image, command, files = [], env, cwd, timeout, memory_mib: memoryMib, network, disposable, tag } = input;
  requireTag(tag);
  if (tag !== undefined) requireScope(call.principal, "images:tag");
  if (network !== undefined && network.length > 0) requireScope(call.principal, "instances:network");
  const from = imageId(call, image);
  return await call.service.instances.spawn(call.principal, {
    image: from,
    command,
    shell: true,
    // The variables of the image, such as its PATH.
    inherit: true,
    env,
    cwd,
    disposable,
    tag,
    timeoutSeconds: timeout,
    files: await inputFiles(call, files),
    stdin: input.stdin === undefined ? undefined : `base64:${Buffer.from(input.stdin, "utf8").toString("base64")}`,
    network: networkOf(network),
    resources: memoryMib === undefined ? undefined : { memoryBytes: memoryMib * BYTES_OF_MIB },
  });
}

export const RUN_TOOLS: readonly Tool[] = [
  tool({
    name: "run",
    description:
      "Run a shell command as root in a fresh VM that starts from an image, and keep its files as a new image (also when it " +
      "fails). Returns exit code, new image and output. If it still runs after wait_seconds, the run continues: use follow.",
    input: RUN_INPUT,
    annotations: { destructiveHint: false, openWorldHint: true },
    scope: KIND_FACTS.instance.scope,
    run(input, call) {
      const { detach, wait_seconds, output_bytes } = input;
      return spawned(input, call).then((id) => settled(call, id, { detach, wait_seconds, output_bytes }));
    },
  }),
  tool({
    name: "follow",
    description: "Wait for an operation to end, and return its result and output so far.",
    input: inputs({ operation: OPERATION, wait_seconds: optional(WAIT_SECONDS), output_bytes: optional(OUTPUT_BYTES) }),
    annotations: READS,
    scope: "operations:read",
    async run(
      { operation, wait_seconds: wait = WAIT_SECONDS_DEFAULT, output_bytes: bytes = SHOWN_BYTES_DEFAULT },
      call,
    ) {
      return await operationAnswer(call, await followed(call, operationId(operation), wait), bytes);
    },
  }),
  tool({
    name: "read_output",
    description: "Read a range of a run's output, also while it runs.",
    input: inputs({
      operation: OPERATION,
      stream: optional(Type.Union([Type.Literal("stdout"), Type.Literal("stderr")], { default: "stdout" })),
      offset: optional(Type.Integer({ default: 0, description: "bytes; below 0: from the end" })),
      length: optional(integer(1, SHOWN_BYTES_MAX, { default: SHOWN_BYTES_DEFAULT })),
    }),
    annotations: READS,
    scope: "operations:read",
    async run({ operation, stream = "stdout", offset = 0, length = SHOWN_BYTES_DEFAULT }, call) {
      const run = call.service.operations.get(call.principal, operationId(operation));
      const range = { offset, length };
      const { bytes, start, totalBytes } = await rangeOf(outputChunks(call, run, stream), range);
      const end = start + bytes.byteLength;
      const state = run.finishedAt === null ? " so far" : "";
      const head = `${stream} bytes ${start} to ${end} of ${totalBytes}${state}`;
      if (isBinary(bytes)) return { content: [text(`${head}, base64:`), text(Buffer.from(bytes).toString("base64"))] };
      return { content: [text(head), text(outputText(bytes))] };
    },
  }),
  tool({
    name: "checkpoint",
    description: "Make an image of the files of a run while it runs.",
    input: inputs({
      operation: OPERATION,
      tag: optional(TAG),
      wait_seconds: optional(WAIT_SECONDS),
    }),
    annotations: ADDS,
    scope: KIND_FACTS.checkpoint.scope,
    async run({ operation, tag, wait_seconds: wait = WAIT_SECONDS_DEFAULT }, call) {
      requireTag(tag);
      const id = await call.service.instances.checkpoint(call.principal, { id: operationId(operation), tag });
      return await outcome(call, id, { waitSeconds: wait, bytesMax: 0 });
    },
  }),
  tool({
    name: "end",
    description: "Stop an operation that waits or runs. A stopped run makes no image.",
    input: inputs({ operation: OPERATION }),
    annotations: DESTROYS,
    scope: "operations:cancel",
    async run({ operation }, { service, principal }) {
      const { id } = service.operations.cancel(principal, operationId(operation));
      return facts(`operation ${id} ends`, { operation: id });
    },
  }),
  tool({
    name: "list_operations",
    description: "List runs, imports and checkpoints, the newest first.",
    input: inputs({
      status: optional(Type.Union(OPERATION_STATUSES.map((status) => Type.Literal(status)))),
      kind: optional(Type.Union(OPERATION_KINDS.map((kind) => Type.Literal(kind)))),
      limit: optional(LIMIT),
      offset: optional(OFFSET),
    }),
    annotations: READS,
    scope: "operations:read",
    async run({ status, kind, limit = LIST_COUNT_DEFAULT, offset = 0 }, { service, principal, signal }) {
      const rows = await service.operations.list(principal, { status, kind, limit, offset, signal });
      const lines = rows.map((row) => {
        const { exit_code: code, image = "-" } = (row.result ?? {}) as { exit_code?: number; image?: string };
        const exit = code === undefined ? "" : ` exit ${code}`;
        const reason = row.error === null ? "" : ` (${cutLine(shownName(row.error.message), REASON_CHARACTERS_MAX)})`;
        return `${row.id} ${row.kind} ${row.status}${exit}${reason} ${image} ${isoTime(row.createdAt)}`;
      });
      if (lines.length === 0) return answer("no operations here");
      return answer("operation kind status image created", ...lines, ...nextPage(lines.length, limit, offset));
    },
  }),
  tool({
    name: "upload_file",
    description: "Store a small file once, to pass its id to the files of several runs.",
    input: inputs({
      content: Type.String({ maxLength: CONTENT_CHARACTERS_MAX }),
      encoding: optional(Type.Union([Type.Literal("text"), Type.Literal("base64")], { default: "text" })),
    }),
    annotations: { ...ADDS, idempotentHint: true },
    scope: "files:write",
    async run({ content, encoding = "text" }, call) {
      const bytes = Buffer.from(content, encoding === "text" ? "utf8" : "base64");
      if (encoding === "base64" && bytes.toString("base64") !== content) {
        throw new ApiError("validation_error", "content must be standard base64 with padding", { field: "content" });
      }
      const { id, sha256 } = await stored(call, bytes);
      return facts(`file ${id}, ${shownBytes(bytes.byteLength)}, sha256 ${sha256}`, { file: id, sha256 });
    },
  }),
];

interface Settling {
  readonly detach: boolean | undefined;
  readonly wait_seconds: number | undefined;
  readonly output_bytes: number | undefined;
}

async function settled(call: ToolCall, id: OperationId, input: Settling) {
  const {
    detach = false,
    wait_seconds: wait = WAIT_SECONDS_DEFAULT,
    output_bytes: bytes = SHOWN_BYTES_DEFAULT,
  } = input;
  using _ending = detach ? null : endIfLeft(call, id);
  return await outcome(call, id, { waitSeconds: wait, bytesMax: bytes });
}
