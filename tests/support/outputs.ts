import type { OperationId } from "../../src/domain/ids.ts";
import { Spid } from "../../src/domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../src/domain/output.ts";
import { eventLogPath } from "../../src/storage/events/event-file.ts";
import { EventWriter } from "../../src/storage/events/writer.ts";
import type { DataLayout } from "../../src/storage/layout.ts";

/** Writes the outputs of an instance's command to its event log. Returns their sizes, as a result has them. */
export async function writeOutputs(
  layout: DataLayout,
  id: OperationId,
  outputs: Readonly<Record<OutputStream, Uint8Array | string>>,
): Promise<Readonly<Record<OutputStream, { readonly bytes: number }>>> {
  const log = new EventWriter({ path: eventLogPath(layout, id), now: () => 0n });
  const captured = log.outputs(Spid.command, Number.MAX_SAFE_INTEGER);
  for (const stream of OUTPUT_STREAMS) await captured.write(stream, Buffer.from(outputs[stream]));
  await log.end();
  using _file = log.file;
  return { stdout: { bytes: captured.bytes("stdout").kept }, stderr: { bytes: captured.bytes("stderr").kept } };
}
