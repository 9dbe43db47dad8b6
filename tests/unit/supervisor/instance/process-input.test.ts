/** Standard input of a process, whose reader is slow. */

import { expect, test } from "bun:test";
import { ProcessInput } from "../../../../src/supervisor/instance/process-input.ts";
import { throwing } from "../../../support/failures.ts";

test("a caller that has left may reuse its buffer: the process reads the original bytes", async () => {
  const read = Promise.withResolvers<boolean>();
  const pieces: Uint8Array[] = [];
  const handle = {
    write: (piece: Uint8Array) => {
      pieces.push(piece);
      return read.promise;
    },
    end: () => Promise.resolve(),
  };
  const input = new ProcessInput({ handle, isOpen: true, onWritten: () => undefined });
  const leave = new AbortController();
  const given = Buffer.from("given");
  const written = input.write(given, leave.signal);
  leave.abort(new Error("left"));
  expect(await throwing(written)).toThrow("left");
  given.fill("x");
  read.resolve(true);
  expect(Buffer.concat(pieces).toString()).toBe("given");
});
