/** A program that uses the package and prints its results as JSON. Its environment names the appliance and an image. */
export const EXAMPLE = `
import {
  answerOf, Attachment, Client, checkpoint, imageIdOf, type Operation, OperationError, operationEvents, outputOf,
  PortConnection, ResponseError, Run, runCommand, signalProcess, startProcess, SteadyAttachment, streamInput, textOf, UnreachableError,
  uploadContent, waitForEnd, cancelOperation, importImage, listDirectory, downloadFile,
} from "coppice-client";

declare const process: { readonly env: Readonly<Record<string, string | undefined>> };
declare const console: { log(text: string): void };
const { COPPICE_URL: url = "", COPPICE_TOKEN: token = "", REFERENCE: registry = "" } = process.env;
const client = new Client({ url: url + "/", token });
const seen: Record<string, unknown> = {};

// An import with its steps.
const steps: string[] = [];
const imported = await importImage(client, { registry, tag: "example" }, { onProgress: ({ step }) => steps.push(step) });
seen["steps"] = steps.length > 0;
const image: string = await imageIdOf(client, "tag:example");
seen["tag"] = image === imported.image;

// A file, and a run that is followed, with input from a stream.
const script = "echo begun; while read -r line; do echo got $line; done; echo oops >&2; echo last > /root/made; exit 3";
const uuid = await uploadContent(client, script);
const bytes = (text: string) => new TextEncoder().encode(text);
const stdin = new ReadableStream<Uint8Array>({
  start(controller) {
    for (const text of ["o", "ne\\ntw", "o\\n"]) controller.enqueue(bytes(text));
    controller.close();
  },
});
const request = { image, command: "sh", args: ["/job"], files: { "/job": { uuid } }, env: { A: "1" } };
const run = await Run.start(client, request, { stdin, signal: AbortSignal.timeout(120_000) });
const lines: string[] = [];
for await (const { stream, line } of run.lines()) lines.push(stream + ": " + line);
const result = await run.result();
seen["lines"] = lines.sort();
seen["exit"] = result.exit_code;
const next = result.image ?? "";
seen["made"] = (await listDirectory(client, { image: next, path: "/root" })).map(({ name }) => name);
seen["content"] = await (await downloadFile(client, { image: next, path: "/root/made" })).text();
seen["again"] = (await uploadContent(client, new Blob([script]))) === uuid;

// Input that is part of the request, and bytes that are not text.
const short = await runCommand(client, { image, command: "cat", disposable: true }, { stdin: new Uint8Array([0, 255, 10]) });
seen["bytes"] = short.stdout?.encoding;
const text = await runCommand(client, { image, command: "cat", disposable: true }, { stdin: "grüße" });
seen["text"] = text.stdout === undefined ? "" : textOf(text.stdout);

// A second process, its streams, a port, a checkpoint, and the end by a signal.
const long = await Run.start(client, { image, command: "sleep 600", shell: true });
for await (const { type } of long.events()) if (type === "spawn") break;
const second = await startProcess(client, long.id, { command: "cat", stdin_open: true });
{
  const attachment = await Attachment.open(client, second, { lossless: true });
  attachment.type(bytes("typed\\n"));
  const output = attachment.output();
  const first = await output.next();
  seen["attached"] = first.done ? "" : new TextDecoder().decode(first.value.bytes);
  await streamInput(client, second, { body: new Blob([]), signal: AbortSignal.timeout(60_000) });
  for await (const _ of output) continue;
  seen["ended"] = attachment.exitCode;
}
const server = await startProcess(client, long.id, { command: "nc -ll -p 77 -e cat", shell: true });
const port = await connected(long.id, 77);
await port.write(bytes("ping"));
port.end();
let pong = "";
for await (const chunk of port.chunks()) pong += new TextDecoder().decode(chunk);
seen["port"] = pong;
await signalProcess(client, server, "KILL").catch(() => undefined);
const point = await checkpoint(client, long.id, { tag: "point" });
seen["checkpoint"] = (await imageIdOf(client, "tag:point")) === point.image;
const steady = await SteadyAttachment.open(client, long.process, {});
const left = steady.output().next().catch(() => undefined);
steady[Symbol.dispose]();
await left;
await long.cancel();
const ended: Operation = await waitForEnd(client, long.id, { timeoutMs: 60_000 });
seen["cancelled"] = ended.status;
seen["error"] = await long.result().catch((error: unknown) => (error instanceof OperationError ? error.name : "other"));

// An abort cancels the run with its reason; a time limit of the wait does not cancel.
const stop = new AbortController();
const stopped = await Run.start(client, { image, command: "sleep 600", shell: true }, { signal: stop.signal });
seen["late"] = await waitForEnd(client, stopped.id, { timeoutMs: 50 }).catch((error: Error) => error.name);
stop.abort(new Error("enough"));
seen["aborted"] = await stopped.result().catch((error: Error) => error.message);
seen["stopped"] = (await waitForEnd(client, stopped.id)).status;

// Routes and errors by their types.
const images = await answerOf(client.v1.images.get({ query: { tagged: true, tag: "exam" } }));
seen["images"] = images.map(({ tag }) => tag);
const missing = await answerOf(client.v1.images({ uuid: "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" }).get()).catch((error) => error);
seen["missing"] = missing instanceof ResponseError ? [missing.status, missing.code] : missing;
let written = 0;
for await (const event of operationEvents(client, run.id, { follow: false })) {
  if (event.type === "stdout") written += outputOf(event).byteLength;
  if (event.type === "exit") seen["event"] = event.data.exit_code;
}
seen["written"] = written;
await cancelOperation(client, run.id);
console.log(JSON.stringify(seen));

/** The server needs a moment to listen. */
async function connected(id: string, port: number): Promise<PortConnection> {
  for (;;) {
    try {
      return await PortConnection.open(client, id, port);
    } catch (error) {
      // Node does not report why a WebSocket was refused.
      if (!(error instanceof UnreachableError || (error instanceof ResponseError && error.status === 409))) throw error;
    }
  }
}
`;

/** The output of the example. */
export const SEEN = {
  steps: true,
  tag: true,
  lines: ["stderr: oops", "stdout: begun", "stdout: got one", "stdout: got two"],
  exit: 3,
  made: ["made"],
  content: "last\n",
  again: true,
  bytes: "base64",
  text: "grüße",
  attached: "typed\n",
  ended: 0,
  port: "ping",
  checkpoint: true,
  cancelled: "CANCELLED",
  error: "OperationError",
  late: "TimeoutError",
  aborted: "enough",
  stopped: "CANCELLED",
  images: ["example"],
  missing: [404, "not_found"],
  event: 3,
  written: 22,
};

/** Statements that must not compile after the imports and `client` of the example. */
export const MISTAKES = [
  "await client.v1.instances.post({ image: 1, command: 'x' });",
  "await client.v1.instances.post({ image: 'x' });",
  "await client.v1.instances.post({ image: 'x', command: 'x', env: { A: 1 } });",
  "await client.v1.instances.post({ image: 'x', command: 'x', comand: 'y' });",
  "await client.v1.images.get({ query: { tagged: 'yes' } });",
  "await client.v1.operations.get({ query: { status: 'DONE' } });",
  "await client.v1.operations.get({ query: { stat: 'SUCCESS' } });",
  "await client.v1.inspect({ uuid: 'x' }).list.get();",
  "await client.v1.operation({ id: 'x' }).get();",
  "await client.v1.operations({ uuid: 'x' }).get();",
  "(await answerOf(client.v1.operations({ id: 'x' }).get())).state;",
  "const code: string = (await run.result()).exit_code;",
  "for await (const event of run.events()) if (event.type === 'exit') event.data.content;",
  "for await (const event of run.events()) if (event.type === 'gone') break;",
  "await runCommand(client, { image: 'x', command: 'x' }, { stdin: 7 });",
  "new Client({ url: 'http://x' });",
] as const;
