import type { Service } from "./socket.ts";

/** Attaches a lossless client that never reads to a process. Disposal cuts its connection. */
export async function stalledReader(service: Service, path: string, spid = 1): Promise<Disposable> {
  const { hostname, port } = new URL(service.url);
  const socket = await Bun.connect({
    hostname,
    port: Number(port),
    socket: { data: (opened) => void opened.pause() },
  });
  const lines = [
    `GET ${path}/processes/${spid}/attach?lossless=true HTTP/1.1`,
    ...[`Host: ${hostname}:${port}`, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"],
    ...["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", `Authorization: Bearer ${service.token}`],
  ];
  socket.write(`${lines.join("\r\n")}\r\n\r\n`);
  return { [Symbol.dispose]: () => void socket.terminate() };
}
