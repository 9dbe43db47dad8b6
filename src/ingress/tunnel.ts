import { withinTime } from "../system/waiting.ts";
import type { ClientSocket } from "./client-socket.ts";
import type { ByteReader } from "./http/reader.ts";
import type { GuestConnection } from "./upstream.ts";

/** After a client has left, the guest has this long to read its last bytes, in `milliseconds`. */
const LINGER_MS = 10_000;

export interface TunnelParts {
  readonly client: ClientSocket;
  /** the client's bytes */
  readonly reader: ByteReader;
  readonly guest: GuestConnection;
  /** the guest's bytes */
  readonly guestReader: ByteReader;
}

/** Passes bytes in both directions until one side ends. Never rejects. */
export async function tunnel({ client, reader, guest, guestReader }: TunnelParts): Promise<void> {
  const toGuest = pass(reader, guest);
  const toClient = pass(guestReader, client);
  const first = await Promise.race([toClient.then(() => "guest" as const), toGuest.then(() => "client" as const)]);
  if (first === "client") await withinTime(toClient, LINGER_MS, () => undefined);
}

/** Never rejects: a reset is an end here. */
async function pass(
  reader: ByteReader,
  side: Pick<GuestConnection, "write"> & Partial<GuestConnection>,
): Promise<void> {
  try {
    for (let bytes = await reader.some(); bytes !== null; bytes = await reader.some()) {
      if (!(await side.write(bytes))) break;
    }
    await side.end?.();
  } catch {
    // The connection to the guest was reset.
  }
}
