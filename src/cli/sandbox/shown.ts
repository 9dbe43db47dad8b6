import type { Client } from "../../client/client.ts";
import { settledSandbox } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { shownDuration } from "../../domain/text/shown.ts";
import { CliError } from "../command.ts";
import type { Io } from "../io.ts";
import { printable } from "../table.ts";
import { interruptible, showProgress } from "../wait.ts";

/** Options of commands that print a sandbox. */
export interface ShownOptions {
  readonly json?: boolean | undefined;
}

/**
 * Waits until a sandbox is in a state that does not pass by itself. Ctrl-C ends the wait, not the sandbox.
 * @throws CliError for one that failed
 */
export async function untilSettled(client: Client, io: Io, sandbox: Sandbox): Promise<Sandbox> {
  using _progress = showProgress(io, `${sandbox.name} is ${sandbox.state}`);
  const now = await interruptible(io, (signal) => settledSandbox(client, sandbox, signal));
  if (now.state === "failed") throw new CliError(`${now.name} failed: ${printable(now.error?.message ?? "unknown")}`);
  return now;
}

/** Prints name and state of a sandbox, or of each of several, or what is given as JSON. */
export async function printStates(given: Sandbox | readonly Sandbox[], io: Io, { json }: ShownOptions): Promise<void> {
  if (json === true) return await io.stdout(`${JSON.stringify(given)}\n`);
  const sandboxes = "uuid" in given ? [given] : given;
  await io.stdout(sandboxes.map(({ name, state }) => `${printable(name)}  ${state}\n`).join(""));
}

/** Prints name, state and the addresses of ports, or the object as JSON. */
export async function printSandbox(
  sandbox: Sandbox,
  io: Io,
  { json, ports = [] }: ShownOptions & { readonly ports?: readonly number[] },
): Promise<void> {
  if (json === true) return await io.stdout(`${JSON.stringify(sandbox)}\n`);
  const lines = [`${printable(sandbox.name)}  ${sandbox.state}`, ...addressesOf(sandbox, ports)];
  await io.stdout(lines.map((line) => `${line}\n`).join(""));
  const [port] = ports;
  if (port === undefined) return;
  const [way, result] =
    sandbox.urls === undefined ? ["forward", "reaches a port"] : ["url", "makes a link for a browser"];
  io.stderr(`coppice up: coppice ${way} ${sandbox.name} ${port} ${result}\n`);
}

/** The addresses of these ports; the pattern of all addresses when there are none; nothing when ports are not served. */
export function addressesOf({ urls }: Sandbox, ports: readonly number[]): string[] {
  if (urls === undefined) return [];
  return ports.length === 0 ? [urls.pattern] : ports.map((port) => urls.pattern.replace("{port}", String(port)));
}

/** Time until the end of a sandbox; `-` while it does not live. */
export function leftText({ ends_at: endsAt }: Sandbox): string {
  return endsAt === null ? "-" : shownDuration(Math.max(0, Date.parse(endsAt) - Date.now()));
}
