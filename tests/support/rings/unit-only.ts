/** Loaded before the unit ring: fails a unit test that starts a program or listens. */
import { Server } from "node:net";

function refused(what: string): () => never {
  return () => {
    throw new Error(`${what} in a unit test: a test that needs it belongs in tests/parts`);
  };
}

Object.assign(Bun, {
  spawn: refused("Bun.spawn"),
  spawnSync: refused("Bun.spawnSync"),
  serve: refused("Bun.serve"),
  listen: refused("Bun.listen"),
  udpSocket: refused("Bun.udpSocket"),
});
Server.prototype.listen = refused("listen");
