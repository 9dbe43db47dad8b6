import type { LogSummary } from "./log-summary.ts";
import { HEADER_BYTES, OUTPUT_PAYLOAD_BYTES_MAX } from "./record.ts";

/** This part of a log is reserved for the headers of the command's outputs, which can be many. */
const HEADERS_SHARE = 1 / 8;

/** The room for output in a log. */
export class LogRoom {
  readonly #limitBytes: number;
  /** headers of the command's outputs that an earlier writer wrote */
  readonly #earlierHeadersBytes: number;
  /** room that is reserved for the outputs of the command, with their headers */
  #reservedBytes = 0;
  /** the part of the reserved room for headers */
  #reservedHeadersBytes = 0;
  #isCapped: boolean;

  /**
   * @param limitBytes size of the log; infinite: there is always room
   * @param summary of a log that is continued
   */
  constructor(limitBytes: number, summary?: Pick<LogSummary, "commandOutputsCount" | "isCapped">) {
    this.#limitBytes = limitBytes;
    this.#earlierHeadersBytes = HEADER_BYTES * (summary?.commandOutputsCount ?? 0);
    this.#isCapped = summary?.isCapped === true;
  }

  /** Reserves room for outputs of the command, and for their headers. */
  reserve(bytes: number): void {
    if (this.#limitBytes === Number.POSITIVE_INFINITY) return;
    const headersBytes = Math.floor(HEADERS_SHARE * this.#limitBytes);
    this.#reservedHeadersBytes = Math.max(0, headersBytes - this.#earlierHeadersBytes);
    this.#reservedBytes = bytes + this.#reservedHeadersBytes;
  }

  /** True when a log of so many bytes has only room for short events. */
  isFull(totalBytes: number): boolean {
    return this.#isCapped || totalBytes + this.#reservedBytes >= this.#limitBytes;
  }

  /**
   * Whether a log of `totalBytes` has room for an output: the first output without room ends the output of all additional
   * processes. The command's output has its reserved room, and loses it only when its headers exceed theirs.
   */
  has(totalBytes: number, outputBytes: number, isReserved: boolean): boolean {
    const headersBytes = HEADER_BYTES * (1 + Math.ceil(outputBytes / OUTPUT_PAYLOAD_BYTES_MAX));
    if (isReserved && headersBytes <= this.#reservedHeadersBytes) return true;
    if (this.#isCapped) return false;
    const moreBytes = headersBytes + (isReserved ? 0 : outputBytes);
    return totalBytes + this.#reservedBytes + moreBytes <= this.#limitBytes;
  }

  /** Ends the output of all additional processes. Returns the limit, in `bytes`; null when it had ended before. */
  cap(): number | null {
    if (this.#isCapped) return null;
    this.#isCapped = true;
    return this.#limitBytes;
  }

  /** Counts output of the command that uses its reserved room. */
  useReserved(outputBytes: number): void {
    this.#reservedBytes -= outputBytes;
  }

  /** Counts headers of the command's output. */
  useReservedHeaders(bytes: number): void {
    const headersBytes = Math.min(bytes, this.#reservedHeadersBytes);
    this.#reservedHeadersBytes -= headersBytes;
    this.#reservedBytes -= headersBytes;
  }
}
