import { isAscii } from "node:buffer";
import { isoTimeNs, type LogEvent } from "../../domain/log-event.ts";
import { ESCAPED_BYTES_MAX, escapeAscii } from "../json-escape.ts";

/** What is not the payload of an event, in `bytes`, with room to spare. */
const HEAD_BYTES_MAX = 512;
const BUFFER_BYTES_MIN = 131_072;

/**
 * Encodes events for the wire. It works on bytes in a buffer of its own: as strings, the text would exist several times,
 * and a run with much output makes much of it.
 */
export class EventText {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES_MIN);
  #used = 0;

  /** Events as frames of an event stream. */
  frames(events: readonly LogEvent[]): Uint8Array<ArrayBuffer> {
    this.#used = 0;
    for (const event of events) {
      this.#reserve(event);
      this.#write(`id: ${event.id}\nevent: ${event.type}\ndata: `);
      this.#event(event);
      this.#write("\n\n");
    }
    return new Uint8Array(this.#bytes.subarray(0, this.#used));
  }

  /** Events as items of a JSON array, without its brackets. */
  items(events: readonly LogEvent[]): string {
    this.#used = 0;
    for (const event of events) {
      this.#reserve(event);
      if (this.#used > 0) this.#write(",");
      this.#event(event);
    }
    return this.#bytes.toString("utf8", 0, this.#used);
  }

  #event({ id, timeNs, spid, type, payload }: LogEvent): void {
    const process = spid === null ? "" : `"spid":${spid},`;
    this.#write(`{"id":${id},"time":"${isoTimeNs(timeNs)}",${process}"type":"${type}","data":`);
    if (type === "stdout" || type === "stderr") this.#output(payload);
    else this.#copy(payload);
    this.#write("}");
  }

  #output(payload: Uint8Array): void {
    if (isAscii(payload)) {
      this.#write('{"content":"');
      this.#used = escapeAscii(payload, this.#bytes, this.#used);
      this.#write('","encoding":"ascii"}');
    } else {
      const bytes = Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
      this.#write('{"content":"');
      this.#write(bytes.toString("base64"));
      this.#write('","encoding":"base64"}');
    }
  }

  /** Data other than output is stored as JSON. */
  #copy(payload: Uint8Array): void {
    this.#bytes.set(payload, this.#used);
    this.#used += payload.byteLength;
  }

  #write(ascii: string): void {
    this.#used += this.#bytes.write(ascii, this.#used, "latin1");
  }

  #reserve({ payload }: LogEvent): void {
    const wantedBytes = this.#used + HEAD_BYTES_MAX + ESCAPED_BYTES_MAX * payload.byteLength;
    if (wantedBytes <= this.#bytes.byteLength) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(wantedBytes, 2 * this.#bytes.byteLength));
    this.#bytes.copy(larger, 0, 0, this.#used);
    this.#bytes = larger;
  }
}
