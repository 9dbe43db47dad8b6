import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import { decodeContent } from "../../../domain/tree/content.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import type { Process as StoredProcess } from "../../../service/running/processes.ts";
import { bodyStream } from "../../body/body.ts";
import { SentOutputs } from "../../output/sent-outputs.ts";
import { empty, json, respond } from "../../reply.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { PROCESS_BODY_BYTES_MAX, requireSignal, SIGNAL_DEFAULT, SignalQuery } from "../../wire-fields.ts";
import { commandOf, terminalOf } from "../command-wire.ts";
import { PtySize } from "../schema/instances.ts";
import { Process, ProcessDetails, ProcessRequest, StartedProcess, StdinRequest } from "../schema/processes.ts";
import { ProcessesQuery, StdinQuery } from "../schema/query.ts";
import { sentOutput } from "../sent-output.ts";
import type { Surface } from "../surface.ts";
import { processOf, type Runner } from "./runner.ts";

const SCOPE = "instances:exec";
const NS_PER_MS = 1_000_000n;

const START = ({ noun, id }: Runner<string>) => ({
  body: checked(ProcessRequest),
  ...about({
    id: id("startProcess"),
    tag: "Processes",
    summary: `Run an additional process in a running ${noun}`,
    responses: {
      201: jsonSpec("the process has started", StartedProcess, { Location: "address of the process" }),
    },
    errors: ["not_found", "conflict", "invalid_path", "too_many_requests", "unavailable"],
  }),
});

const LIST = ({ one, id }: Runner<string>) => ({
  query: checked(ProcessesQuery),
  ...about({
    id: id("listProcesses"),
    tag: "Processes",
    summary: `List the processes of ${one}, including ended ones, in the order of their starts`,
    responses: { 200: jsonSpec("a page of processes", Type.Array(Process)) },
    errors: ["not_found", "too_many_requests"],
  }),
});

const GET = ({ one, id }: Runner<string>) => ({
  ...about({
    id: id("getProcess"),
    tag: "Processes",
    summary: `Read a process of ${one}, with its output so far`,
    responses: { 200: jsonSpec("the process", ProcessDetails) },
    errors: ["not_found", "too_many_requests"],
  }),
});

const SIGNAL = ({ id }: Runner<string>) => ({
  query: checked(SignalQuery),
  ...about({
    id: id("signalProcess"),
    tag: "Processes",
    summary: "Send a signal to the process group of a process",
    responses: { 204: { description: "the signal was sent to the guest" } },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
});

const STDIN = ({ id }: Runner<string>) => ({
  body: checked(StdinRequest),
  ...about({
    id: id("writeStdin"),
    tag: "Processes",
    summary: "Write to the standard input of a process; answered when the guest has received the bytes",
    responses: { 204: { description: "the guest has received all bytes" } },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
});

const STREAM = ({ id }: Runner<string>) => ({
  query: checked(StdinQuery),
  ...about({
    id: id("streamStdin"),
    tag: "Processes",
    summary: "Stream the body to the standard input of a process, as fast as the process reads",
    responses: { 204: { description: "the guest has received all bytes" } },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
});

const RESIZE = ({ id }: Runner<string>) => ({
  body: checked(PtySize),
  ...about({
    id: id("resizeTerminal"),
    tag: "Processes",
    summary: "Set the size of the terminal of a process",
    responses: { 204: { description: "the size was sent to the guest" } },
    errors: ["not_found", "conflict", "unavailable"],
  }),
});

export function processRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  const { processes } = surface.service;
  const prefix = `${runner.prefix}/processes` as const;
  return new Elysia({ prefix })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal, params, body: { timeout, ...command } }) => {
        const process = { ...commandOf(command), timeoutSeconds: timeout };
        const target = runner.target(principal, params);
        const { spid, pid } = await processes.start(principal, target, process, request.signal);
        const location = `${surface.address}${runner.path(target)}/processes/${spid}`;
        return respond(json(201, { spid, pid }, { location }), request) as never;
      },
      { takes: { scope: SCOPE, bytesMax: PROCESS_BODY_BYTES_MAX, waitsForGuest: true }, ...START(runner) },
    )
    .get(
      "",
      async ({ request: { signal }, principal, params, query: { limit = LIMIT_DEFAULT, offset = 0 } }) => {
        const id = runner.target(principal, params);
        return (await processes.list(principal, { id, limit, offset, signal })).map(wireProcess);
      },
      { reads: SCOPE, ...LIST(runner) },
    )
    .get(
      "/:spid",
      async ({ request, principal, params }) => {
        const name = processOf(runner, principal, params);
        const process = await processes.get(principal, name, request.signal);
        using outputs = new SentOutputs();
        const opened = outputs.hold(await processes.outputs(principal, name.id, process, request.signal));
        const send = async (stream: "stdout" | "stderr") =>
          await sentOutput(outputs, await opened.read(stream), process.outputs[stream].truncated);
        const body = { ...wireProcess(process), stdout: await send("stdout"), stderr: await send("stderr") };
        return respond(await outputs.reply(body, 200), request) as never;
      },
      { reads: SCOPE, ...GET(runner) },
    )
    .delete(
      "/:spid",
      async ({ request, principal, params, query: { signal = SIGNAL_DEFAULT } }) => {
        await processes.signal(principal, processOf(runner, principal, params), requireSignal(signal));
        return respond(empty(204), request);
      },
      { writes: SCOPE, ...SIGNAL(runner) },
    )
    .post(
      "/:spid/stdin",
      async ({ request, principal, params, body: { close = false, ...encoded } }) => {
        const content = [decodeContent(encoded)];
        await processes.write(principal, {
          ...processOf(runner, principal, params),
          content,
          close,
          signal: request.signal,
        });
        return respond(empty(204), request);
      },
      { takes: { scope: SCOPE, waitsForGuest: true }, ...STDIN(runner) },
    )
    .post(
      "/:spid/stdin/stream",
      async ({ request, server, principal, params, query: { close = false } }) => {
        // The process may read slowly, and the client may have nothing to write for a long time.
        server?.timeout(request, 0);
        const input = {
          ...processOf(runner, principal, params),
          content: bodyStream(request),
          close,
          signal: request.signal,
        };
        await processes.write(principal, input);
        return respond(empty(204), request);
      },
      { streams: SCOPE, ...STREAM(runner) },
    )
    .patch(
      "/:spid/pty",
      async ({ request, principal, params, body }) => {
        await processes.resize(principal, processOf(runner, principal, params), terminalOf(body));
        return respond(empty(204), request);
      },
      { takes: { scope: SCOPE }, ...RESIZE(runner) },
    );
}

function wireProcess({ spid, state, startedNs, endedNs, spawn, exit }: StoredProcess): Process {
  const { pid, command, args, args_truncated, cwd, user, uid, gid, pty } = spawn;
  return {
    spid,
    pid,
    state,
    command,
    args: [...args],
    ...given({ args_truncated }),
    cwd,
    uid,
    gid,
    ...given({ user, pty }),
    started_at: isoTime(Number(startedNs / NS_PER_MS)),
    ...(endedNs === null ? {} : { ended_at: isoTime(Number(endedNs / NS_PER_MS)) }),
    exit_code: exit?.exit_code ?? null,
    signal: exit?.signal ?? null,
    ...(exit === null ? {} : { timed_out: exit.timed_out, duration_ms: exit.duration_ms }),
    ...(exit?.oom_killed === true ? { oom_killed: true } : {}),
    cpu_time_ms: exit?.cpu_time_ms ?? null,
    memory_bytes: exit?.memory_bytes ?? null,
  };
}
