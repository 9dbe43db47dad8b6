import { connect, type Socket } from "node:net";
import { GateError, type GateVerdict } from "../gate.ts";
import { isAllowed, isDenied, type Judgement } from "./judge.ts";

/** Time limits for one address, and for all of a destination. */
const ADDRESS_MS_MAX = 10_000;
const ALL_MS_MAX = 30_000;

/** A socket whose far end has an address that was judged. It is paused and has no listeners yet. */
export interface Dialled {
  readonly socket: Socket;
  readonly address: string;
}

/**
 * Connects to the first address that accepts. One address that may not be reached refuses them all: a name with
 * both kinds of addresses is not to be trusted.
 * @param judgement null for the site's proxy, which the operator named
 * @throws GateError; the signal's reason
 */
export async function dial(
  addresses: readonly string[],
  port: number,
  judgement: Judgement | null,
  signal: AbortSignal,
): Promise<Dialled> {
  if (judgement !== null) judge(addresses, judgement);
  const deadline = performance.now() + ALL_MS_MAX;
  let failure = new GateError("timed_out", "it does not answer");
  for (const [index, address] of addresses.entries()) {
    const left = deadline - performance.now();
    if (left <= 0) break;
    try {
      return { socket: await dialAddress(address, port, Math.min(ADDRESS_MS_MAX, left), signal), address };
    } catch (error) {
      signal.throwIfAborted();
      const { verdict, message } = failureOf(error);
      failure = new GateError(verdict, message, addresses.slice(0, index + 1));
    }
  }
  throw failure;
}

/** @throws GateError `denied_private` for the first address that may not be reached, or `denied` for one that the request denies */
export function judge(addresses: readonly string[], judgement: Judgement): void {
  const forbidden = addresses.find((each) => !isAllowed(each, judgement));
  if (forbidden !== undefined) {
    throw new GateError("denied_private", `its address ${forbidden} may not be reached`, [forbidden]);
  }
  const { denied } = judgement.reach;
  const refused = denied === undefined ? undefined : addresses.find((each) => isDenied(each, denied));
  if (refused !== undefined) throw new GateError("denied", `its address ${refused} is denied`, [refused]);
}

function dialAddress(host: string, port: number, limitMs: number, signal: AbortSignal): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = connect({ host, port, allowHalfOpen: true, autoSelectFamily: false, noDelay: true });
  const timer = setTimeout(() => give(new TimeoutError()), limitMs);
  const onAbort = (): void => give(signal.reason);
  const settle = (): void => {
    clearTimeout(timer);
    signal.removeEventListener("abort", onAbort);
  };
  const give = (error: unknown): void => {
    settle();
    socket.destroy();
    reject(error);
  };
  if (signal.aborted) give(signal.reason);
  signal.addEventListener("abort", onAbort);
  // It stays: an error after the failure has no other listener.
  socket.on("error", give);
  socket.once("connect", () => {
    settle();
    socket.off("error", give);
    socket.pause();
    resolve(socket);
  });
  return promise;
}

class TimeoutError extends Error {
  readonly code = "ETIMEDOUT";
}

function failureOf(error: unknown): { verdict: GateVerdict; message: string } {
  const code = (error as NodeJS.ErrnoException).code ?? "";
  switch (code) {
    case "ECONNREFUSED":
      return { verdict: "refused", message: "connection refused" };
    case "ETIMEDOUT":
      return { verdict: "timed_out", message: "it does not answer" };
    case "EMFILE":
    case "ENFILE":
      return { verdict: "limited", message: "there are too many connections" };
    default:
      return { verdict: "unreachable", message: "no route to it" };
  }
}
