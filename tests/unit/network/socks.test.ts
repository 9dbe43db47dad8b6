import { expect, test } from "bun:test";
import type { Socket, TCPSocketListener, TCPSocketListenOptions } from "bun";
import type { End } from "../../../src/network/tool-proxy/relay.ts";
import { openSocksProxy } from "../../../src/network/tool-proxy/socks.ts";
import { ToolNetwork } from "../../../src/system/tool-network.ts";

const GREETING = Uint8Array.of(5, 1, 0);
const REQUEST = Uint8Array.of(5, 1, 0, 1, 192, 0, 2, 1, 0, 80);

/** Does not listen: the test calls the handlers of the sockets. */
class PlayedNetwork extends ToolNetwork {
  handlers: TCPSocketListenOptions<End>["socket"] | null = null;

  override listen<Data>(options: TCPSocketListenOptions<Data>): TCPSocketListener<Data> {
    this.handlers = options.socket as unknown as TCPSocketListenOptions<End>["socket"];
    return { port: 1, stop: () => undefined } as unknown as TCPSocketListener<Data>;
  }
}

test("data after a client's request closes the connection without opening a second one", () => {
  using network = new PlayedNetwork();
  const requests: string[] = [];
  using _proxy = openSocksProxy({
    network,
    connect: (host) => {
      requests.push(host);
      return new Promise(() => undefined);
    },
    onFailure: () => undefined,
  });
  let terminated = 0;
  const socket = {
    write: (bytes: Uint8Array) => bytes.byteLength,
    pause: () => undefined,
    terminate: () => {
      terminated += 1;
    },
  } as unknown as Socket<End>;
  network.handlers?.open?.(socket);
  for (const chunk of [GREETING, REQUEST]) network.handlers?.data?.(socket, Buffer.from(chunk));
  expect([requests, terminated]).toEqual([["192.0.2.1:80"], 0]);
  // A chunk can still arrive when the socket is paused. An empty one does not change the request.
  network.handlers?.data?.(socket, Buffer.alloc(0));
  expect([requests, terminated]).toEqual([["192.0.2.1:80"], 1]);
});
