import { expect } from "bun:test";
import type { Appliance } from "../appliance/appliance.ts";
import { pause } from "../waiting.ts";

/** A sandbox as the API answers it. */
export interface WireSandbox {
  readonly uuid: string;
  readonly name: string;
  readonly state: string;
  readonly image: string;
  readonly head: string;
  readonly instance: string | null;
  readonly ends_at: string | null;
  readonly memory?: { readonly size_bytes: number };
  readonly error?: { readonly error: string; readonly message: string };
}

export interface WireState {
  readonly seq: number;
  readonly image: string;
  readonly parent: number | null;
  readonly reason: string;
  readonly tags: readonly string[];
  readonly is_head: boolean;
  readonly ref: string | null;
}

export interface WireEvent {
  readonly id: number;
  readonly type: string;
  readonly spid?: number;
  readonly data: Readonly<Record<string, unknown>>;
}

/** A client of one sandbox. */
export class SandboxClient {
  readonly id: string;
  readonly #appliance: Appliance;

  constructor(appliance: Appliance, id: string) {
    this.#appliance = appliance;
    this.id = id;
  }

  /** Opens a sandbox, and waits until it runs. */
  static async open(appliance: Appliance, request: Record<string, unknown>): Promise<SandboxClient> {
    const response = await appliance.post("/sandboxes?wait=60", request);
    const body = await response.text();
    expect([response.status, body]).toEqual([201, expect.stringContaining('"state":"running"')]);
    return new SandboxClient(appliance, (JSON.parse(body) as WireSandbox).uuid);
  }

  async get(): Promise<WireSandbox> {
    return (await (await this.#appliance.fetch(`/sandboxes/${this.id}`)).json()) as WireSandbox;
  }

  /** The status and the body of a request below the sandbox's address. */
  async post(path: string, body: unknown = {}): Promise<{ readonly status: number; readonly body: never }> {
    const response = await this.#appliance.post(`/sandboxes/${this.id}/${path}`, body);
    return { status: response.status, body: (await response.json()) as never };
  }

  /** Makes a change, and expects the state that it leads to. */
  async becomes(state: string, path: string, body: unknown = {}): Promise<WireSandbox> {
    const answer = await this.post(path, body);
    expect([answer.status, (answer.body as WireSandbox).state]).toEqual([200, state]);
    return answer.body;
  }

  /** Changes settings. */
  async change(settings: Record<string, unknown>): Promise<void> {
    const headers = { "content-type": "application/json" };
    const init = { method: "PATCH", headers, body: JSON.stringify(settings) };
    expect((await this.#appliance.fetch(`/sandboxes/${this.id}`, init)).status).toBe(200);
  }

  async end(query = ""): Promise<{ readonly status: number; readonly body: WireSandbox }> {
    const response = await this.#appliance.fetch(`/sandboxes/${this.id}?${query}`, { method: "DELETE" });
    return { status: response.status, body: (await response.json()) as WireSandbox };
  }

  async states(): Promise<WireState[]> {
    return (await (await this.#appliance.fetch(`/sandboxes/${this.id}/states`)).json()) as WireState[];
  }

  async events(): Promise<WireEvent[]> {
    const headers = { accept: "application/json" };
    return (await (await this.#appliance.fetch(`/sandboxes/${this.id}/events`, { headers })).json()) as WireEvent[];
  }

  /** Makes a checkpoint, and returns its image. */
  async checkpoint(request: Record<string, unknown> = {}): Promise<string> {
    const { status, body } = await this.post("checkpoint", request);
    expect(status).toBe(202);
    const { status: end, result } = await this.#appliance.finished((body as { uuid: string }).uuid);
    expect(end).toBe("SUCCESS");
    return String((result as { image?: string } | undefined)?.image);
  }

  /** Runs an expression of a shell, or a program with arguments, and returns its number and output. */
  async run(
    command: string,
    how: { readonly shell: true } | { readonly args: readonly string[] } = { shell: true },
  ): Promise<{ readonly spid: number; readonly output: string }> {
    const { status, body } = await this.post("processes", { command, ...how });
    expect([status, body]).toEqual([201, expect.anything()]);
    const { spid } = body as { spid: number };
    for (;;) {
      const response = await this.#appliance.fetch(`/sandboxes/${this.id}/processes/${spid}`);
      const process = (await response.json()) as { exit_code: number | null; stdout: { content: string } };
      if (process.exit_code !== null) return { spid, output: process.stdout.content };
      await pause("the process ends", 50);
    }
  }
}
