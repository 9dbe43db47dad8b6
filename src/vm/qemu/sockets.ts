import { closeSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { connectUnix, listenUnix, openSocketDirectory } from "../../system/unix-sockets.ts";
import { SocketChannel } from "../agent/channel.ts";
import { homePaths } from "../jail/jailed-vmm.ts";

/** The sockets on which QEMU listens. It serves one client of each at a time; the next one waits. */
export type QemuSocket = "monitor" | "agent";

const nameOf = (socket: QemuSocket): string => `${socket}.sock`;

/** Makes the listening sockets for the QEMU of a machine; `stack` closes this process's descriptors of them. */
export async function listenForQemu(stack: DisposableStack, home: string): Promise<Record<QemuSocket, number>> {
  const { sockets } = homePaths(home);
  await mkdir(sockets, { mode: 0o700 });
  const directory = openSocketDirectory(stack, sockets);
  const listen = (socket: QemuSocket): number => {
    const fd = listenUnix(`${directory}/${nameOf(socket)}`);
    stack.defer(() => closeSync(fd));
    return fd;
  };
  return { monitor: listen("monitor"), agent: listen("agent") };
}

/** Connects to a socket of a machine's QEMU. The caller owns the channel. @throws LibcError when nothing listens */
export async function connectToQemu(home: string, socket: QemuSocket): Promise<SocketChannel> {
  using stack = new DisposableStack();
  const directory = openSocketDirectory(stack, homePaths(home).sockets);
  return await SocketChannel.open(connectUnix(`${directory}/${nameOf(socket)}`));
}
