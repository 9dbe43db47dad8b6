import { type Static, Type } from "@sinclair/typebox";
import { ApiError } from "../../../domain/errors.ts";
import { isoTime, type SandboxId } from "../../../domain/ids.ts";
import { PORT_MAX } from "../../../domain/ingress.ts";
import { FORK_COUNT_MAX } from "../../../domain/sandbox.ts";
import { displayName, parseGuestPathText } from "../../../domain/tree/guest-path.ts";
import type { ProcessName } from "../../../service/running/running.ts";
import type { Sandbox } from "../../../service/sandboxes/sandboxes.ts";
import { type Answer, answer, facts, text } from "../answer.ts";
import { entryText } from "../file-tools.ts";
import { WAIT_SECONDS_DEFAULT } from "../following.ts";
import { requireTag, TAG, WAIT_SECONDS } from "../image-tools.ts";
import { outcome } from "../operation-answer.ts";
import { SHOWN_BYTES_DEFAULT } from "../output.ts";
import { requireScope } from "../problem.ts";
import { BYTES_OF_MIB, CONTENT_CHARACTERS_MAX, MODE, NETWORK, networkOf, OUTPUT_BYTES } from "../run-tools.ts";
import { fileText, isBinary, shownBytes, shownName } from "../text.ts";
import {
  ADDS,
  DESTROYS,
  IMAGE,
  imageId,
  inputs,
  integer,
  optional,
  READS,
  type Tool,
  type ToolCall,
  tool,
} from "../tool.ts";
import { readProcess } from "./process-output.ts";

const SANDBOX = Type.String({ maxLength: 45, description: "name or uuid" });
const PATH = Type.String({ maxLength: 4096, description: "absolute" });
const ENTRIES_COUNT_MAX = 500;
const SANDBOXES_COUNT_MAX = 100;
const READ_BYTES_DEFAULT = 16_384;
const READ_BYTES_MAX = 65_536;

/** @throws ApiError `not_found` */
const find = ({ service, principal }: ToolCall, name: string): SandboxId => service.sandboxes.find(principal, name);

/** A sandbox in one line. */
function line({ id, name, state, headId, endsAt, error }: Sandbox): string {
  const end = endsAt === null ? "" : `, until ${isoTime(endsAt)}`;
  const reason = error === null ? "" : ` (${shownName(error.message)})`;
  return `${name} ${state}${reason}${end}, head ${headId ?? "-"}, uuid ${id}`;
}

/** The sandbox once a machine has begun or ended, or as it is after a while. */
async function settled({ service, principal, signal }: ToolCall, id: SandboxId, goal: "settled" | "running") {
  const waitMs = WAIT_SECONDS_DEFAULT * 1000;
  const sandbox = await service.sandboxes.wait(principal, id, { goal, waitMs, signal });
  signal.throwIfAborted();
  return sandbox;
}

const sandboxAnswer = (sandbox: Sandbox, ...next: readonly string[]): Answer => ({
  ...facts([line(sandbox), ...next].join("\n"), { uuid: sandbox.id, name: sandbox.name, state: sandbox.state }),
  ...(sandbox.state === "failed" ? { isError: true } : {}),
});

const OPEN_INPUT = inputs({
  image: IMAGE,
  name: optional(Type.String({ maxLength: 40 })),
  timeout: optional(Type.Integer({ minimum: 1, default: 3600, description: "seconds until it pauses" })),
  memory_mib: optional(Type.Integer({ minimum: 1 })),
  network: optional(NETWORK),
});

async function open(input: Static<typeof OPEN_INPUT>, call: ToolCall): Promise<Answer> {
  const { image, name, timeout, memory_mib: memoryMib, network } = input;
  if (network !== undefined && network.length > 0) requireScope(call.principal, "instances:network");
  const { id } = await call.service.sandboxes.open(call.principal, {
    image: imageId(call, image),
    name,
    timeoutSeconds: timeout,
    network: networkOf(network),
    resources: memoryMib === undefined ? undefined : { memoryBytes: memoryMib * BYTES_OF_MIB },
  });
  return sandboxAnswer(
    await settled(call, id, "settled"),
    "sandbox_exec runs commands in it; its files stay until sandbox_end",
  );
}

const EXEC_INPUT = inputs({
  sandbox: SANDBOX,
  command: optional(Type.String({ minLength: 1, maxLength: 131_071, description: "for /bin/sh -c" })),
  process: optional(integer(2, Number.MAX_SAFE_INTEGER, { description: "a running one to wait for, not a command" })),
  cwd: optional(Type.String({ maxLength: 4096 })),
  user: optional(Type.String({ maxLength: 256 })),
  wait_seconds: optional(WAIT_SECONDS),
  output_bytes: optional(OUTPUT_BYTES),
});

/** The process that a call starts or names. @throws ApiError */
async function processOf(
  { sandbox, command, process, cwd, user }: Static<typeof EXEC_INPUT>,
  call: ToolCall,
): Promise<ProcessName> {
  if ((command === undefined) === (process === undefined)) {
    throw new ApiError("validation_error", "either command or process is needed");
  }
  const id = { sandbox: find(call, sandbox) };
  const request = { command: command ?? "", shell: true, inherit: true, cwd, user };
  const spid = process ?? (await call.service.processes.start(call.principal, id, request, call.signal)).spid;
  return { id, spid };
}

async function processAnswer(
  call: ToolCall,
  name: ProcessName,
  limits: { readonly waitSeconds: number; readonly bytesMax: number },
): Promise<Answer> {
  const { spid } = name;
  const { state, end, items } = await readProcess(call, name, limits);
  const first = {
    running: `process ${spid} still runs: sandbox_exec with process ${spid} waits for it`,
    lost: `process ${spid} is gone with its machine`,
    ended: end?.timed_out === true ? "it exceeded its timeout" : `exit code ${end?.exit_code}`,
  }[state];
  const data = { process: spid, state, exit_code: end?.exit_code };
  return { content: [text(first), ...items], _meta: { "coppice/process": data } };
}

const CHANGING_TOOLS: readonly Tool[] = [
  tool({
    name: "sandbox_open",
    description:
      "Open a sandbox: a VM that lives on an image, for many commands. Returns when it runs. At the end " +
      "of its time it pauses; the next use resumes it.",
    input: OPEN_INPUT,
    annotations: { destructiveHint: false, openWorldHint: true },
    scope: "instances:spawn",
    run: open,
  }),
  tool({
    name: "sandbox_exec",
    description:
      "Run a shell command in a sandbox, or wait for one that still runs. Returns exit code and output. Cancelling kills it.",
    input: EXEC_INPUT,
    annotations: { destructiveHint: false, openWorldHint: true },
    scope: "instances:exec",
    run(input, call) {
      const { wait_seconds: waitSeconds = WAIT_SECONDS_DEFAULT, output_bytes: bytesMax = SHOWN_BYTES_DEFAULT } = input;
      return processOf(input, call).then((name) => processAnswer(call, name, { waitSeconds, bytesMax }));
    },
  }),
  tool({
    name: "sandbox_write",
    description: "Write a text file in a sandbox; directories are made.",
    input: inputs({
      sandbox: SANDBOX,
      path: PATH,
      content: Type.String({ maxLength: CONTENT_CHARACTERS_MAX }),
      append: optional(Type.Boolean({ default: false })),
      mode: optional(MODE),
    }),
    annotations: ADDS,
    scope: "instances:exec",
    run({ sandbox, path, content, append = false, mode }, call) {
      const bytes = Buffer.from(content, "utf8");
      const request = {
        ...{ target: { sandbox: find(call, sandbox) }, path: parseGuestPathText(path), signal: call.signal },
        ...{ parents: true, atomic: false, exclusive: false, append },
        ...(mode === undefined ? {} : { mode: Number.parseInt(mode, 8) }),
        content: once(bytes),
      };
      const name = shownName(path);
      return call.service.guestFiles
        .write(call.principal, request)
        .then(() => facts(`${name}: ${shownBytes(bytes.byteLength)} written`, { path, bytes: bytes.byteLength }));
    },
  }),
  tool({
    name: "sandbox_checkpoint",
    description: "Save the files of a sandbox as an image, to roll back to.",
    input: inputs({ sandbox: SANDBOX, tag: optional(TAG) }),
    annotations: ADDS,
    scope: "instances:exec",
    async run({ sandbox, tag }, call) {
      requireTag(tag);
      if (tag !== undefined) requireScope(call.principal, "images:tag");
      const id = await call.service.sandboxes.checkpoint(call.principal, find(call, sandbox), { tag });
      return await outcome(call, id, { waitSeconds: WAIT_SECONDS_DEFAULT, bytesMax: 0 });
    },
  }),
  tool({
    name: "sandbox_rollback",
    description: "Give a sandbox the files of an earlier state, in place. Processes end; later changes are lost.",
    input: inputs({
      sandbox: SANDBOX,
      to: optional(Type.String({ maxLength: 300, default: "HEAD", description: "HEAD~n, image uuid or tag:NAME" })),
      keep: optional(Type.Boolean({ default: false, description: "save the present files first" })),
    }),
    annotations: DESTROYS,
    scope: "instances:spawn",
    async run({ sandbox, to = "HEAD", keep = false }, call) {
      const { sandboxes } = call.service;
      const id = find(call, sandbox);
      const goal = sandboxes.get(call.principal, id).state === "running" ? "running" : "settled";
      await sandboxes.rollback(call.principal, id, { image: to, keep });
      return sandboxAnswer(await settled(call, id, goal));
    },
  }),
  tool({
    name: "sandbox_fork",
    description: "Open sandboxes with the present files of a sandbox, to try alternatives.",
    input: inputs({
      sandbox: SANDBOX,
      count: optional(integer(1, FORK_COUNT_MAX, { default: 1 })),
      memory: optional(Type.Boolean({ default: false, description: "copy processes and secrets, too; at most 16" })),
    }),
    annotations: ADDS,
    scope: "instances:spawn",
    async run({ sandbox, count = 1, memory = false }, call) {
      const { signal, principal, service } = call;
      const id = find(call, sandbox);
      const ids = memory
        ? (await service.sandboxes.forkMemory(principal, id, { count, signal })).ids
        : await service.sandboxes.fork(principal, id, { count, signal });
      const forks = await Promise.all(ids.map((id) => settled(call, id, "settled")));
      const sandboxes = forks.map(({ id, name, state }) => ({ uuid: id, name, state }));
      return facts(forks.map(line).join("\n"), { sandboxes });
    },
  }),
  tool({
    name: "sandbox_url",
    description: "Make a link to a web server in a sandbox, for a person's browser.",
    input: inputs({ sandbox: SANDBOX, port: integer(1, PORT_MAX) }),
    annotations: ADDS,
    scope: "instances:exec",
    async run({ sandbox, port }, call) {
      const { url, expiresAt } = await call.service.ingress.link(call.principal, find(call, sandbox), { port });
      return facts(`${url} until ${isoTime(expiresAt)}`, { url, expires_at: isoTime(expiresAt) });
    },
  }),
  tool({
    name: "sandbox_end",
    description: "End a sandbox for good, or pause it: its files stay, with memory its processes, too.",
    input: inputs({
      sandbox: SANDBOX,
      pause: optional(Type.Boolean({ default: false })),
      memory: optional(Type.Boolean({ default: false })),
    }),
    annotations: DESTROYS,
    scope: "instances:spawn",
    async run({ sandbox, pause = false, memory = false }, call) {
      const { sandboxes } = call.service;
      const id = find(call, sandbox);
      if (pause) await sandboxes.pause(call.principal, id, { memory });
      else await sandboxes.end(call.principal, id, { keep: false });
      return sandboxAnswer(await settled(call, id, "settled"));
    },
  }),
];

export const SANDBOX_TOOLS: readonly Tool[] = [
  ...CHANGING_TOOLS,
  tool({
    name: "sandbox_read",
    description: "Read a file of a sandbox as it is now, or a range of it.",
    input: inputs({
      sandbox: SANDBOX,
      path: PATH,
      offset: optional(integer(0, Number.MAX_SAFE_INTEGER, { default: 0 })),
      length: optional(integer(1, READ_BYTES_MAX, { default: READ_BYTES_DEFAULT, description: "bytes" })),
    }),
    annotations: READS,
    scope: "instances:read",
    run: ({ sandbox, path, offset = 0, length = READ_BYTES_DEFAULT }, call) =>
      readFile(call, { sandbox, path, offset, length }),
  }),
  tool({
    name: "sandbox_list",
    description: "List the sandboxes that have not ended; with sandbox, a directory of it.",
    input: inputs({ sandbox: optional(SANDBOX), path: optional(Type.String({ maxLength: 4096, default: "/" })) }),
    annotations: READS,
    scope: "instances:read",
    async run({ sandbox, path = "/" }, call) {
      if (sandbox !== undefined) return await listDirectory(call, sandbox, path);
      const { sandboxes, next } = call.service.sandboxes.list(call.principal, { limit: SANDBOXES_COUNT_MAX });
      if (sandboxes.length === 0) return answer("there are none; sandbox_open opens one");
      return answer(...sandboxes.map(line), ...(next === null ? [] : ["(there are more)"]));
    },
  }),
];

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array, void, undefined> {
  yield bytes;
}

async function listDirectory(call: ToolCall, sandbox: string, path: string): Promise<Answer> {
  const request = { target: { sandbox: find(call, sandbox) }, path: parseGuestPathText(path), signal: call.signal };
  using entries = await call.service.guestFiles.list(call.principal, { ...request, depth: 1, follow: true });
  const lines: string[] = [];
  for await (const entry of entries.items) {
    // The first entry is the directory itself.
    if (entry.path === "") continue;
    if (lines.length === ENTRIES_COUNT_MAX) return answer(...lines, "(there are more)");
    lines.push(entryText(entry.path, { ...entry, size: entry.size ?? 0 }));
  }
  return answer(...(lines.length > 0 ? lines : ["the directory is empty"]));
}

interface ReadInput {
  readonly sandbox: string;
  readonly path: string;
  readonly offset: number;
  readonly length: number;
}

async function readFile(call: ToolCall, { sandbox, path, offset, length }: ReadInput): Promise<Answer> {
  const target = { sandbox: find(call, sandbox) };
  const request = { target, path: parseGuestPathText(path), offset, length, signal: call.signal };
  using file = await call.service.guestFiles.read(call.principal, request);
  const parts: Uint8Array[] = [];
  for await (const chunk of file.items) parts.push(Buffer.from(chunk));
  const bytes = Buffer.concat(parts);
  const { size } = file.entry;
  const end = offset + bytes.byteLength;
  const isWhole = offset === 0 && bytes.byteLength === (size ?? bytes.byteLength) && bytes.byteLength < length;
  const range = isWhole
    ? shownBytes(bytes.byteLength)
    : `bytes ${offset} to ${end}${size === null ? "" : ` of ${size}`}`;
  const rest = size !== null && end < size ? `; next offset ${end}` : "";
  const name = shownName(displayName(request.path));
  if (isBinary(bytes)) return answer(`${name}: binary, ${range}`);
  const content = fileText(bytes);
  const { hiddenCount } = content;
  const hidden = hiddenCount === 0 ? "" : `; ${hiddenCount} control or invisible characters are not shown`;
  return { content: [text(`${name}: ${range}${rest}${hidden}`), text(content.text)] };
}
