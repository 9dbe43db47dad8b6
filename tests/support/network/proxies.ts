import { connect, type Socket } from "node:net";
import { type Peer, peer } from "./peers.ts";

/** A proxy of a site. It resolves every name to the loopback. */
export interface TestProxy extends Peer {
  /** requested destinations, as `HOST:PORT` */
  readonly asked: string[];
}

const LOGIN = "alice:s3cret pass";

/** An HTTP CONNECT proxy, which requires the login `alice:s3cret pass`. @param status of the answer to a valid request */
export async function httpProxy(status = 200): Promise<TestProxy> {
  const asked: string[] = [];
  const server = await peer((socket) => {
    let head = "";
    const onData = (chunk: Buffer): void => {
      head += chunk.toString("latin1");
      if (!head.includes("\r\n\r\n")) return;
      socket.off("data", onData);
      const [, target = ""] = /^CONNECT (\S+) HTTP\/1\.1\r\nHost: \1\r\n/.exec(head) ?? [];
      const login = /^Proxy-Authorization: Basic (\S+)\r$/m.exec(head)?.[1] ?? "";
      if (Buffer.from(login, "base64").toString() !== LOGIN) {
        return void socket.end("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n");
      }
      asked.push(target);
      if (status !== 200) return void socket.end(`HTTP/1.1 ${status} No\r\nContent-Length: 0\r\n\r\n`);
      relay(socket, target, "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n");
    };
    socket.on("data", onData);
  });
  return { ...server, asked };
}

/** A SOCKS 5 proxy, which requires the same login. @param code of the answer to a valid request */
export async function socksProxy(code = 0): Promise<TestProxy> {
  const asked: string[] = [];
  const server = await peer((socket) => {
    let step = 0;
    const onData = (chunk: Buffer): void => {
      step += 1;
      if (step === 1) return void socket.write(Buffer.of(5, chunk.includes(2, 2) ? 2 : 0xff));
      if (step === 2) {
        const user = chunk.subarray(2, 2 + (chunk[1] ?? 0)).toString();
        const password = chunk.subarray(3 + (chunk[1] ?? 0)).toString();
        return void socket.write(Buffer.of(1, `${user}:${password}` === LOGIN ? 0 : 1));
      }
      socket.off("data", onData);
      const target = socksTarget(chunk);
      asked.push(target);
      const answer = Buffer.of(5, code, 0, 1, 127, 0, 0, 1, 0, 80);
      if (code !== 0) return void socket.end(answer);
      relay(socket, target, answer);
    };
    socket.on("data", onData);
  });
  return { ...server, asked };
}

function socksTarget(request: Buffer): string {
  const type = request[3];
  const port = request.readUInt16BE(request.byteLength - 2);
  const host = request.subarray(type === 3 ? 5 : 4, -2);
  if (type === 3) return `${host.toString()}:${port}`;
  return `${type === 1 ? host.join(".") : host.toString("hex")}:${port}`;
}

function relay(socket: Socket, target: string, answer: string | Buffer): void {
  const port = Number(/:(\d+)$/.exec(target)?.[1]);
  const outer = connect({ host: "127.0.0.1", port, allowHalfOpen: true });
  outer.on("error", () => socket.destroy());
  outer.on("connect", () => {
    socket.write(answer);
    socket.pipe(outer);
    outer.pipe(socket);
  });
}
