import type { GateConnection, GateEnd } from "../../network/gate.ts";
import type { GuestConnection } from "../../vm/agent/connection.ts";

/** The two ends of a connection that was accepted. */
export interface RelayEnds {
  readonly guest: GuestConnection;
  readonly outer: GateConnection;
}

/** Called before bytes are passed on. When it returns false, the connection is reset instead. */
export interface RelayMeter {
  sent(bytes: number): boolean;
  received(bytes: number): boolean;
}

/**
 * Passes bytes in both directions, as fast as the slower end accepts them, until both have ended or one is reset. A reset of
 * one end resets the other. Resolves to the outer end's end; never rejects.
 * @param over resets the outer end, even one that only has to pass on what the guest has sent
 */
export async function relay({ guest, outer }: RelayEnds, meter: RelayMeter, over: AbortSignal): Promise<GateEnd> {
  let end: GateEnd | null = null;
  const ended = outer.ended.then((how) => {
    end = how;
    if (how !== "ended") guest.reset();
    return how;
  });
  const reset = () => outer.reset();
  const signals = [guest.signal, over];
  for (const signal of signals) signal.addEventListener("abort", reset);
  if (signals.some(({ aborted }) => aborted)) reset();
  const up = async () => {
    for await (const chunk of guest.chunks()) {
      if (!meter.sent(chunk.byteLength)) return guest.reset();
      await outer.write(chunk);
    }
    outer.end();
  };
  const down = async () => {
    for await (const chunk of outer.chunks()) {
      if (!meter.received(chunk.byteLength)) return guest.reset();
      // The guest reads no more only after a reset, which resets the outer end.
      if (!(await guest.write(chunk))) return;
    }
    // The chunks also end with a reset, which the guest has already received.
    await Promise.resolve();
    if (end === null || end === "ended") await guest.end();
  };
  const broken = () => {
    guest.reset();
    outer.reset();
  };
  await Promise.all([up().catch(broken), down().catch(broken)]);
  const how = await ended;
  for (const signal of signals) signal.removeEventListener("abort", reset);
  return how;
}
