import { isAscii } from "node:buffer";
import { isoTimeNs, type LogEvent } from "../../domain/log-event.ts";
import { WireBuffer } from "../output/wire-buffer.ts";

/** Upper bound of the bytes around the payload of an event, in `bytes`. */
const HEAD_BYTES_MAX = 512;

/** Encodes events for the wire. */
export class EventText {
  readonly #buffer = new WireBuffer();

  /** Events as frames of an event stream. */
  frames(events: readonly LogEvent[]): Uint8Array<ArrayBuffer> {
    const buffer = this.#buffer;
    buffer.clear();
    for (const event of events) {
      buffer.reserve(HEAD_BYTES_MAX, event.payload);
      buffer.write(`id: ${event.id}\nevent: ${event.type}\ndata: `);
      this.#event(event);
      buffer.write("\n\n");
    }
    return buffer.bytes();
  }

  /** Events as items of a JSON array, without its brackets. */
  items(events: readonly LogEvent[]): string {
    const buffer = this.#buffer;
    buffer.clear();
    for (const event of events) {
      buffer.reserve(HEAD_BYTES_MAX, event.payload);
      if (!buffer.isEmpty) buffer.write(",");
      this.#event(event);
    }
    return buffer.text();
  }

  #event({ id, timeNs, spid, type, payload }: LogEvent): void {
    const process = spid === null ? "" : `"spid":${spid},`;
    this.#buffer.write(`{"id":${id},"time":"${isoTimeNs(timeNs)}",${process}"type":"${type}","data":`);
    if (type === "stdout" || type === "stderr") this.#output(payload);
    // Data other than output is stored as JSON.
    else this.#buffer.copy(payload);
    this.#buffer.write("}");
  }

  #output(payload: Uint8Array): void {
    const buffer = this.#buffer;
    buffer.write('{"content":"');
    if (isAscii(payload)) {
      buffer.escape(payload);
      buffer.write('","encoding":"ascii"}');
    } else {
      buffer.base64(payload);
      buffer.write('","encoding":"base64"}');
    }
  }
}
