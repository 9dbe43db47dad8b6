/*
 * Replaces Cloud Hypervisor: the same command line, API, events and sockets, without a machine. It is compiled into one
 * executable, which the real driver starts through the real launcher, in the jail. Every request is checked against the API
 * description. It reads /control.json and /openapi.yaml of its root, which a test puts there, and writes its observations
 * to /vm/run/transcript.
 */

import { createWriteStream, existsSync, openSync, readFileSync, writeSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { parseArgs } from "node:util";
import { pause } from "../waiting.ts";
import type { Control, Failure, TranscriptLine } from "./control.ts";
import { ApiDescription } from "./description.ts";
import { type HttpRequest, readRequests, writeResponse } from "./http.ts";
import { MachineModel, Refusal } from "./model.ts";

const API_PREFIX = "/api/v1/";
/** Limit of micro_http. */
const CONNECTIONS_COUNT_MAX = 10;
/** Time of an exit with a machine. */
const EXIT_MS = 200;
const AGENT_SOCKET = "/vm/agent.sock";
/** Absent where the tests have no description. */
const DESCRIPTION = "/openapi.yaml";
/** Set at compile time. */
declare const STAND_IN_VERSION: string;
const VERSION = STAND_IN_VERSION;
const CONTROL: Control = existsSync("/control.json") ? JSON.parse(readFileSync("/control.json", "utf8")) : {};

const { values } = parseArgs({
  args: Bun.argv.slice(2),
  strict: true,
  options: {
    version: { type: "boolean" },
    "api-socket": { type: "string" },
    "event-monitor": { type: "string" },
    seccomp: { type: "string" },
    "no-shutdown": { type: "boolean" },
  },
});

function descriptorOf(option: string | undefined): number {
  const match = /^fd=(\d+)$/.exec(option ?? "");
  if (match === null) fail(`not a descriptor: ${option}`);
  return Number(match?.[1]);
}

function fail(message: string): never {
  process.stderr.write(`stand-in: ${message}\n`);
  process.exit(2);
}

/** Failures that were not used yet. */
const failures: Failure[] = [...(CONTROL.failures ?? [])];

class StandIn {
  readonly #description = existsSync(DESCRIPTION) ? new ApiDescription(readFileSync(DESCRIPTION, "utf8")) : null;
  readonly #transcript = openSync("/vm/run/transcript", "a");
  readonly #events: number;
  readonly #startedAt = performance.now();
  readonly #model: MachineModel;
  #vsock: Server | null = null;
  readonly #console = new Set<Socket>();
  #kept = "";
  #connections = 0;
  #isEnding = false;

  constructor(events: number) {
    this.#events = events;
    this.#model = new MachineModel({
      event: (source, event, properties) => this.event(source, event, properties),
      openConsole: (path) => this.#listen(path, (socket) => this.#showConsole(socket)).then(() => undefined),
      openVsock: async (path) => {
        this.#vsock = await this.#listen(path, (socket) => {
          socket.on("close", () => this.#follow("vsock.close"));
          void this.#serveWhenRunning(socket);
        });
      },
      closeVsock: () => this.#vsock?.close(),
      exit: () => void pause("the answer is sent first", 20).then(() => process.exit(0)),
      snapshot: CONTROL.snapshot,
    });
  }

  event(source: string, event: string, properties?: Record<string, string>): void {
    const elapsedMs = performance.now() - this.#startedAt;
    const timestamp = { secs: Math.floor(elapsedMs / 1000), nanos: Math.round((elapsedMs % 1000) * 1e6) };
    const value = { timestamp, source, event, properties: properties ?? null };
    writeSync(this.#events, `${JSON.stringify(value, null, 2)}\n\n`);
  }

  serve(fd: number): void {
    const server = createServer((socket) => {
      this.#connections++;
      socket.on("close", () => this.#connections--);
      socket.on("error", () => socket.destroy());
      if (this.#connections > CONNECTIONS_COUNT_MAX) this.#note({ violation: "more than ten connections" });
      readRequests(socket, (request) => {
        this.#answer(request, socket).catch((error: Error) => fail(String(error.stack)));
      });
    });
    server.on("error", (error) => fail(error.message));
    server.listen({ fd });
  }

  /** Gives up the machine and exits, as the program does at a signal. It answers nothing more. */
  giveUp(): void {
    this.#isEnding = true;
    this.#model.end();
    this.event("vmm", "shutdown");
    void pause("the program destroys its devices", EXIT_MS).then(() => process.exit(0));
  }

  async #answer({ method, url, headers, body: text }: HttpRequest, socket: Socket): Promise<void> {
    if (this.#isEnding) return;
    const endpoint = url.startsWith(API_PREFIX) ? url.slice(API_PREFIX.length) : url;
    const body: unknown = text === "" ? undefined : JSON.parse(text);
    for (const { path, message } of this.#description?.checkRequest(method, endpoint, body) ?? []) {
      this.#note({ violation: `${method} ${endpoint}${path}: ${message}` });
    }
    const type = headers.get("content-type");
    if (body !== undefined && type !== "application/json") this.#note({ violation: `${endpoint}: type ${type}` });
    const failure = failures.findIndex((each) => each.endpoint === endpoint);
    const planned = failures[failure];
    if (planned !== undefined && (planned.skip ?? 0) > 0) {
      failures[failure] = { ...planned, skip: (planned.skip ?? 0) - 1 };
    } else if (planned !== undefined) {
      if (planned.once === true) failures.splice(failure, 1);
      this.#note({ call: endpoint, status: 0, body });
      this.#fail(planned, socket);
      return;
    }
    const { status, body: answer } = await this.#perform(endpoint, body);
    this.#note({ call: endpoint, status, body });
    for (const { path, message } of this.#description?.checkResponse(method, endpoint, status, answer) ?? []) {
      this.#note({ violation: `the stand-in's own answer to ${endpoint}${path}: ${message}` });
    }
    writeResponse(socket, status, answer);
    this.#follow(endpoint);
  }

  /** Causes the events of the guest after `endpoint`. */
  #follow(endpoint: string): void {
    for (const { after, source, event, properties } of CONTROL.events ?? []) {
      if (after === endpoint) this.#happen(source, event, properties);
    }
  }

  /** The vsock device accepts no connection while the machine is paused. */
  async #serveWhenRunning(socket: Socket): Promise<void> {
    while (!this.#model.isRunning && !socket.destroyed) await pause("the machine is paused", 5);
    serveVsock(socket);
  }

  async #perform(endpoint: string, body: unknown): Promise<{ status: number; body?: unknown }> {
    if (endpoint === "vmm.ping") {
      this.#model.misbehave();
      return {
        status: 200,
        body: { build_version: `v${VERSION}`, version: `${VERSION}.0`, pid: process.pid, features: ["kvm"] },
      };
    }
    try {
      return await this.#model.call(endpoint, body);
    } catch (error) {
      const status = error instanceof Refusal ? error.status : 500;
      if (CONTROL.refusals !== true) this.#note({ violation: `${endpoint} was refused: ${(error as Error).message}` });
      return { status, body: ["Error from API", (error as Error).message] };
    }
  }

  #fail({ how }: Failure, socket: Socket): void {
    // A hang: there is no answer.
    // The first process of a pid namespace ignores its own signals, but not this one.
    if (how === "die") process.abort();
    if (how === "exit") process.exit(1);
    if (how === "500") writeResponse(socket, 500, ["Error from API", "made to fail"]);
    if (how === "garbage") socket.end("HTTP/1.1 200 \r\nContent-Length: 4\r\n\r\n\u0000{]x");
    if (how === "close") socket.destroy();
    if (how === "flood") socket.end(`HTTP/1.1 200 \r\nContent-Length: 8388608\r\n\r\n${"x".repeat(8_388_608)}`);
  }

  /** An event of the guest. */
  #happen(source: string, event: string, properties?: Record<string, string>): void {
    const text = CONTROL.console ?? "";
    this.#kept += text;
    for (const socket of this.#console) socket.write(text);
    if (source === "stderr") fail(event);
    if (source === "raw") writeSync(this.#events, event);
    else this.event(source, event, properties);
  }

  async #listen(path: string, serve: (socket: Socket) => void): Promise<Server> {
    const server = createServer({ allowHalfOpen: false }, (socket) => {
      // The other side may disconnect at any time.
      socket.on("error", () => socket.destroy());
      serve(socket);
    });
    await new Promise<void>((done, failed) => {
      server.on("error", failed);
      server.listen(path, () => done());
    });
    return server;
  }

  /** v53 stores earlier output for a late reader, v52 does not. */
  #showConsole(socket: Socket): void {
    this.#console.add(socket);
    if (!VERSION.startsWith("52.") && this.#kept !== "") socket.write(this.#kept);
  }

  #note(line: TranscriptLine): void {
    writeSync(this.#transcript, `${JSON.stringify(line)}\n`);
  }
}

/** The host's side of the vsock device (docs/vsock.md); the guest's listener is the process that listens on /vm/agent.sock. */
function serveVsock(socket: Socket): void {
  let head = Buffer.alloc(0);
  const onData = (chunk: Buffer): void => {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf("\n");
    if (end < 0) return;
    socket.off("data", onData);
    socket.pause();
    const port = /^CONNECT (\d+)$/.exec(head.toString("latin1", 0, end))?.[1];
    const guest = port === String(CONTROL.agentPort ?? 1024) ? connect(AGENT_SOCKET) : null;
    guest?.on("error", () => socket.destroy());
    if (guest === null) socket.destroy();
    guest?.on("connect", () => {
      socket.write(`OK ${port === "1024" ? 1_073_741_824 : port}\n`);
      guest.write(head.subarray(end + 1));
      guest.pipe(socket);
      socket.pipe(guest);
    });
    socket.on("close", () => guest?.destroy());
    guest?.on("close", () => socket.destroy());
  };
  socket.on("data", onData);
}

if (values.version === true) {
  const out = createWriteStream("", { fd: 1 });
  out.end(`cloud-hypervisor v${VERSION}\nMigration Protocol Versions: 0\n`);
} else {
  if (values.seccomp !== "true") fail("seccomp is off");
  if (values["no-shutdown"] !== true) fail("a guest's power-off would end it");
  const standIn = new StandIn(descriptorOf(values["event-monitor"]));
  standIn.event("vmm", "starting");
  process.on("SIGTERM", () => standIn.giveUp());
  standIn.serve(descriptorOf(values["api-socket"]));
}
