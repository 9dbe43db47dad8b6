import { createServer } from "node:net";
import { NameResolver } from "./resolver.ts";
import { Session } from "./session.ts";

/** The listening socket that the daemon passes. It is the only way to this process, which shares the host's network. */
const LISTENER_FD = 3;
const IDLE_CHECK_MS = 1000;

/*
 * The program of the process that connects to the outside. It gets requests from the daemon, one for each socket, and has
 * nothing else: no file, no key, no privilege. See docs/security.md.
 */
const resolver = new NameResolver();
const sessions = new Set<Session>();
const server = createServer({ allowHalfOpen: true }, (socket) => {
  const session = new Session(socket, resolver);
  sessions.add(session);
  socket.on("close", () => sessions.delete(session));
});
// Without its listener the process is useless, and the daemon starts another.
server.on("error", (error) => {
  throw error;
});
server.listen({ fd: LISTENER_FD });
setInterval(() => {
  const now = performance.now();
  for (const session of sessions) session.checkIdle(now);
}, IDLE_CHECK_MS);
