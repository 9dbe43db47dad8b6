import { type CompletionData, isoTimeNs, type LogEvent, type LogEventData } from "../../domain/log-event.ts";
import { WireBuffer } from "../output/wire-buffer.ts";
import { endingOf, usageOf } from "./process-wire.ts";
import { isPlain } from "./streams.ts";

/** Upper bound of the bytes around the payload of an event, in `bytes`. */
const HEAD_BYTES_MAX = 512;
const NO_PAYLOAD = new Uint8Array();
const NOT_ASCII = /[\u007f-\uffff]/g;
const escaped = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
/** Directory of the service's files in the guest. */
const RUNTIME_PATH = "/run";

/** Events as frames of this dialect's event stream. Events that it does not have are left out, so that ids have gaps. */
export class EventFrames {
  readonly #buffer = new WireBuffer();

  /** The frames of a part of a log, without its end. */
  of(events: readonly LogEvent[]): Uint8Array<ArrayBuffer> {
    this.#buffer.clear();
    for (const event of events) {
      if (event.type === "stdout" || event.type === "stderr") this.#output(event);
      else {
        const data = dataOf(event);
        if (data !== null) this.#data(event, data);
      }
    }
    return this.#buffer.bytes();
  }

  /**
   * The frame of the end.
   * @param imageBytes size of the image of the result; 0 when there is none
   */
  completion(event: LogEvent, imageBytes: number): Uint8Array<ArrayBuffer> {
    const { status, duration_ms, image, error } = jsonOf<CompletionData>(event);
    this.#buffer.clear();
    this.#data(event, {
      status,
      duration_ms,
      result_image_uuid: image ?? null,
      image_size_bytes: imageBytes,
      error: error?.message ?? null,
    });
    return this.#buffer.bytes();
  }

  #output(event: LogEvent): void {
    const { payload } = event;
    const buffer = this.#buffer;
    buffer.reserve(HEAD_BYTES_MAX, payload);
    this.#head(event);
    buffer.write('{"value":"');
    const isText = isPlain(payload);
    if (isText) buffer.escape(payload);
    else buffer.base64(payload);
    buffer.write(`","encoding":"${isText ? "ascii" : "base64"}","truncated":false}}\n\n`);
  }

  #data(event: LogEvent, data: object): void {
    // Some readers of streams treat other characters as line ends, too.
    const json = JSON.stringify(data).replaceAll(NOT_ASCII, escaped);
    this.#buffer.reserve(HEAD_BYTES_MAX + json.length, NO_PAYLOAD);
    this.#head(event);
    this.#buffer.write(`${json}}\n\n`);
  }

  #head({ id, type, timeNs, spid }: LogEvent): void {
    const process = spid === null ? "" : `"spid":${spid},`;
    this.#buffer.write(
      `id: ${id}\nevent: ${type}\ndata: {"id":${id},"ts":"${isoTimeNs(timeNs)}",${process}"type":"${type}","data":`,
    );
  }
}

/** The frames that end a stream whose events could not be read. */
export function failureFrames(message: string): Uint8Array<ArrayBuffer> {
  const line = message.replaceAll(/[\r\n]+/g, " ");
  return new TextEncoder().encode(
    `: stream ended with error, retry since last event id\n\nevent: sse_error\ndata: ${line}\n\n`,
  );
}

/** The `data` of an event that is not an output; null when this dialect has no such event. */
function dataOf(event: LogEvent): object | null {
  switch (event.type) {
    case "init":
      return initData(jsonOf(event));
    case "spawn":
      return spawnData(jsonOf(event));
    case "exit":
      return exitData(jsonOf(event));
    case "shutdown": {
      const { stopped_at, reason } = jsonOf<LogEventData["shutdown"]>(event);
      return { stopped_at, reason: reason === "failed" ? "signal" : reason };
    }
    case "truncated":
    case "size_cap":
      return jsonOf(event);
    default:
      return null;
  }
}

function jsonOf<Data extends object>({ payload }: LogEvent): Data {
  return JSON.parse(Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength).toString("utf8")) as Data;
}

function initData({ started_at, hostname }: LogEventData["init"]): object {
  return { started_at, runtime_path: RUNTIME_PATH, verbose: false, init_pid: 1, hostname, machine: "x86_64" };
}

/** The log does not record whether the request had `shell`; a command line that begins like that of a shell counts. */
function spawnData({ timeout, truncate_output_at, ...spawn }: LogEventData["spawn"]): object {
  const { pid, command, args, cwd, uid, gid } = spawn;
  const shell = args[0] === "-c";
  // No limit is a limit of 0: clients expect a number.
  return { pid, command, args, shell, cwd, uid, gid, timeout: timeout ?? 0, truncate_at: truncate_output_at };
}

function exitData(exit: LogEventData["exit"]): object {
  const { pid, timed_out, core_dump, duration_ms } = exit;
  return { pid, ...endingOf(exit), timed_out, core_dump, duration_ms, resources: usageOf(exit) };
}
