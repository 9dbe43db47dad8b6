import { mkdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { run } from "../../src/system/exec.ts";
import { type Appliance, type Finished, text } from "./appliance/appliance.ts";
import { until } from "./waiting.ts";

const PROGRAMS = resolve(import.meta.dir, "../../build/test-programs");
const COMPILE_MS = 30_000;

export type Body = Record<string, unknown>;

/** The result of a run, with its outputs as text. */
export interface RunResult extends Body {
  readonly exit_code: number;
  readonly timed_out: boolean;
  readonly cpu_time_ms: number;
  readonly memory_bytes: number;
  readonly image?: string;
  readonly out: string;
  readonly err: string;
  readonly stdout: { readonly content: string; readonly encoding: string; readonly truncated: boolean };
  readonly stderr: { readonly content: string; readonly encoding: string; readonly truncated: boolean };
}

/** The result of an operation that must have succeeded. */
export function resultOf(operation: Finished): RunResult {
  if (operation.status !== "SUCCESS") throw new Error(`the operation failed: ${JSON.stringify(operation)}`);
  const result = operation.result as unknown as RunResult;
  return { ...result, out: text(result.stdout), err: text(result.stderr) };
}

/** Bytes of a captured output. */
export function bytesOf(output: RunResult["stdout"]): Buffer {
  return Buffer.from(output.content, output.encoding === "base64" ? "base64" : "latin1");
}

/** Runs a request to its end; disposable unless it says otherwise. */
export async function execute(appliance: Appliance, request: Body): Promise<RunResult> {
  return resultOf(await appliance.finished(await appliance.spawn({ disposable: true, ...request })));
}

/** Uploads content and returns its uuid. */
export async function upload(
  appliance: Appliance,
  content: string | Uint8Array<ArrayBuffer>,
  token = appliance.token,
): Promise<string> {
  const response = await appliance.fetch("/files", { method: "POST", body: content, token });
  if (response.status !== 201) throw new Error(`upload answered ${response.status}: ${await response.text()}`);
  return ((await response.json()) as { uuid: string }).uuid;
}

/** Uploads a static program compiled from C source. */
export async function uploadProgram(appliance: Appliance, name: string, source: string): Promise<string> {
  await mkdir(PROGRAMS, { recursive: true });
  const path = join(PROGRAMS, name);
  await Bun.write(`${path}.c`, source);
  const argv = ["musl-gcc", "-static", "-O1", "-Wall", "-Werror", "-o", path, `${path}.c`];
  await run({ argv, timeoutMs: COMPILE_MS });
  return await upload(appliance, await Bun.file(path).bytes());
}

/** The current state of an operation. */
export async function operationOf(appliance: Appliance, id: string): Promise<Body> {
  return (await (await appliance.fetch(`/operations/${id}`)).json()) as Body;
}

/** Waits until an instance runs. */
export async function running(appliance: Appliance, id: string): Promise<void> {
  await until(`instance ${id} runs`, async () => {
    return (await appliance.fetch(`/instances/${id}/stats?once=true`)).status === 200;
  });
}

/** Entries of a directory of an image. */
export async function list(appliance: Appliance, image: string, path: string): Promise<Body[]> {
  const response = await appliance.fetch(`/inspect/${image}/list?path=${encodeURIComponent(path)}`);
  if (response.status !== 200) throw new Error(`list answered ${response.status}: ${await response.text()}`);
  return ((await response.json()) as { items: Body[] }).items;
}

/** Names of the entries of a directory of an image, sorted. */
export async function names(appliance: Appliance, image: string, path: string): Promise<string[]> {
  return (await list(appliance, image, path)).map((item) => String(item["name"])).sort();
}

export function download(appliance: Appliance, image: string, path: string): Promise<Response> {
  return appliance.fetch(`/inspect/${image}/download?path=${encodeURIComponent(path)}`);
}
