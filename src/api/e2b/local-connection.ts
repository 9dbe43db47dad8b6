import { ClientSocket } from "../../ingress/client-socket.ts";
import type { GuestConnection } from "../../ingress/upstream.ts";

/** The application may let a body wait as long as the guest that reads it does, in `milliseconds`: the client decides. */
const STALL_MS = 2_147_483_647;

/** Connects to a server of this process on a socket. @throws Error when nothing listens there */
export async function connectLocally(path: string): Promise<GuestConnection> {
  const opened = Promise.withResolvers<ClientSocket>();
  await Bun.connect<ClientSocket | undefined>({
    unix: path,
    socket: {
      ...(ClientSocket.handlers as object),
      open(socket) {
        const local = socket as Parameters<NonNullable<typeof ClientSocket.handlers.data>>[0];
        local.data = new ClientSocket(local, STALL_MS);
        opened.resolve(local.data);
      },
    },
  });
  const socket = await opened.promise;
  return {
    chunks: () => socket.chunks(),
    write: (bytes) => socket.write(bytes),
    // The application reads each request by its own length; its connection ends with the answer.
    end: async () => undefined,
    reset: () => socket.reset(),
  };
}
