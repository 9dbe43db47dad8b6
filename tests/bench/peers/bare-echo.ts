import { type BareMachine, PORT_NAME, startBare } from "./cold-boot.ts";

/** For so long the lines may be measured, in `milliseconds`. */
const ECHO_MS_MAX = 1_800_000;
const READY = "ready\n";
/** Says that it is ready, and then sends back what comes. A port takes one opener, so one descriptor serves both ways. */
const COMMAND = `
for port in /sys/class/virtio-ports/*; do
	read -r name < "$port/name"
	[ "$name" != ${PORT_NAME} ] || IFS=: read -r major minor < "$port/dev"
done
mknod /dev/${PORT_NAME} c "$major" "$minor" && exec 3<> /dev/${PORT_NAME} && echo ready >&3 && exec cat <&3 >&3`;

/** A bare machine that sends lines back through a virtio-serial port. */
export interface BareEcho extends AsyncDisposable {
  /** Time of a line to the guest and back, in `milliseconds`; one at a time. */
  roundTrip(line: string): Promise<number>;
}

/** Boots it. `isReady` is false when the image lacks the programs. */
export async function startBareEcho(machine: BareMachine): Promise<BareEcho & { readonly isReady: Promise<boolean> }> {
  const bare = await startBare(machine, ["/bin/sh", "-c", COMMAND], ECHO_MS_MAX);
  let received = "";
  let expected = READY;
  let arrived = Promise.withResolvers<number>();
  bare.port.onData((chunk) => {
    received += chunk === null ? "" : Buffer.from(chunk).toString("latin1");
    if (received === expected) arrived.resolve(performance.now());
  });
  const ended = bare.handle.exit.then(({ exitCode }) => exitCode);
  // No caller waits for it when the machine is ended.
  ended.catch(() => undefined);
  const isReady = Promise.race([arrived.promise.then(() => true), ended.then(() => false)]);
  const roundTrip = async (line: string): Promise<number> => {
    [received, expected, arrived] = ["", line, Promise.withResolvers<number>()];
    const sentAt = performance.now();
    await bare.port.write(Buffer.from(line));
    const lost = ended.then((code) => Promise.reject(new Error(`the command of the bare machine ended with ${code}`)));
    return (await Promise.race([arrived.promise, lost])) - sentAt;
  };
  return { isReady, roundTrip, [Symbol.asyncDispose]: () => bare[Symbol.asyncDispose]() };
}
