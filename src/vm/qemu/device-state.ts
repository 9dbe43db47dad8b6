import { closeSync, fstatSync, readSync, writeSync } from "node:fs";
import { createMemfd, sealMemfd } from "../descriptors.ts";
import { VmmError } from "../machine-end.ts";
import type { SealedFile } from "./memory-file.ts";

/** Limit for the device state of a machine; 0.4 MiB were measured. */
export const STATE_BYTES_MAX = 67_108_864;
/** The same for a state that a guest may have written. The daemon copies it in one turn of its event loop. */
export const FORK_STATE_BYTES_MAX = 16_777_216;

/** Bound of the sections that are inserted into a state. */
const INSERTED_BYTES_MAX = 1024;

/** Start of a migration stream: a magic number and the version, both big-endian. */
const HEADER = Buffer.from([0x51, 0x45, 0x56, 0x4d, 0, 0, 0, 3]);
/** Start of the section with the name of the machine type: its type, and the length of the name, which is set later. */
const CONFIGURATION = Buffer.from([7, 0, 0, 0, 0]);
/** An empty description, which QEMU expects after the last section: its type and its length. */
const DESCRIPTION = Buffer.from([6, 0, 0, 0, 0]);

/**
 * Makes the state that `xen-save-devices-state` has written loadable: QEMU expects the name of the machine type in front of
 * the devices, and a description behind them. The rest of the state, which a compromised QEMU may have written, is not read.
 * @param written a memfd
 * @param machineType as `pc-q35-7.2`, without an alias
 * @returns a sealed memfd, which the caller closes
 * @throws VmmError when it is not a state
 */
export async function loadableState(written: number, machineType: string): Promise<SealedFile> {
  const stateBytes = fstatSync(written).size;
  if (stateBytes > FORK_STATE_BYTES_MAX - INSERTED_BYTES_MAX)
    throw new VmmError(`the device state is too large (${stateBytes} bytes)`);
  const state = Buffer.alloc(stateBytes);
  const readBytes = readSync(written, state, 0, stateBytes, 0);
  if (readBytes !== stateBytes || !state.subarray(0, HEADER.byteLength).equals(HEADER))
    throw new VmmError("the VMM wrote an unknown format of device state");
  const name = Buffer.from(machineType, "latin1");
  const configuration = Buffer.from(CONFIGURATION);
  configuration.writeUInt32BE(name.byteLength, 1);
  const whole = Buffer.concat([HEADER, configuration, name, state.subarray(HEADER.byteLength), DESCRIPTION]);
  using undo = new DisposableStack();
  const fd = createMemfd("fork-state", whole.byteLength);
  undo.defer(() => closeSync(fd));
  writeSync(fd, whole, 0, whole.byteLength, 0);
  await sealMemfd(fd);
  undo.move();
  return { fd, sizeBytes: whole.byteLength };
}
