/** One event of the VMM's `--event-monitor`. */
export interface CloudHypervisorEvent {
  /** `vmm`, `vm`, `guest` or `virtio-device` */
  readonly source: string;
  readonly event: string;
  readonly properties: Readonly<Record<string, string>>;
}

/** Longest accepted event, in `bytes`; real ones have some hundred. */
const EVENT_BYTES_MAX = 65_536;
const NEWLINE = 0x0a;

/** The VMM sent bytes that are not events. */
export class CloudHypervisorEventError extends Error {
  override readonly name = "CloudHypervisorEventError";
}

/**
 * Splits the stream of the event monitor into indented JSON objects, each followed by an empty line
 * (event_monitor/src/lib.rs and vmm/src/lib.rs, `start_event_monitor_thread`). A guest may have taken over its VMM, so
 * lengths are bounded and types are checked.
 */
export class CloudHypervisorEventDecoder {
  #kept: Uint8Array = new Uint8Array(0);

  /** @throws CloudHypervisorEventError; the decoder must not be used afterwards */
  push(chunk: Uint8Array): CloudHypervisorEvent[] {
    const bytes = Buffer.concat([this.#kept, chunk]);
    const events: CloudHypervisorEvent[] = [];
    let start = 0;
    for (let end = endOfEvent(bytes, start); end >= 0; end = endOfEvent(bytes, start)) {
      const text = bytes.toString("utf8", start, end).trim();
      if (text !== "") events.push(parseEvent(text));
      start = end + 2;
    }
    this.#kept = bytes.subarray(start);
    if (this.#kept.byteLength > EVENT_BYTES_MAX) throw new CloudHypervisorEventError("an event is too long");
    return events;
  }
}

/** Position of the empty line that ends the event at `start`; -1 while it is missing. */
function endOfEvent(bytes: Buffer, start: number): number {
  for (let at = bytes.indexOf(NEWLINE, start); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) {
    if (bytes[at + 1] === NEWLINE) return at;
  }
  return -1;
}

function parseEvent(text: string): CloudHypervisorEvent {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new CloudHypervisorEventError("an event is not JSON", { cause: error });
  }
  const { source, event, properties } = (value ?? {}) as Record<string, unknown>;
  if (typeof source !== "string" || typeof event !== "string") {
    throw new CloudHypervisorEventError("an event has no source or name");
  }
  const pairs = typeof properties === "object" && properties !== null ? Object.entries(properties) : [];
  // Other values need not have a text.
  const texts = pairs.filter((pair): pair is [string, string] => typeof pair[1] === "string");
  return { source, event, properties: Object.fromEntries(texts) };
}
