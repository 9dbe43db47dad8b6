import { AgentError, AgentProtocolError } from "./errors.ts";
import { type Frame, viewOf } from "./frames.ts";
import { AgentFrame } from "./protocol.ts";

/** Longest text of the guest in an error or a log line, in `bytes`. */
const TEXT_BYTES_MAX = 1024;

/** Text of the guest for messages: shortened, with control characters replaced. */
export function guestText(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.subarray(0, TEXT_BYTES_MAX)).toString("utf8");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces control characters.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, "?");
}

export function unexpected(frame: Frame): AgentProtocolError {
  return new AgentProtocolError(`a frame of type ${frame.type} and ${frame.payload.byteLength} bytes out of place`);
}

/** The payload, if it has exactly `bytes` bytes. @throws AgentProtocolError */
export function checkLength(frame: Frame, bytes: number): DataView {
  if (frame.payload.byteLength !== bytes) throw unexpected(frame);
  return viewOf(frame.payload);
}

/** Decodes the payload of an ERROR. @throws AgentProtocolError */
export function parseError(frame: Frame): AgentError {
  if (frame.payload.byteLength < 8) throw unexpected(frame);
  const view = viewOf(frame.payload);
  if (view.getUint32(4, true) !== 0) throw unexpected(frame);
  return new AgentError(view.getUint32(0, true), guestText(frame.payload.subarray(8)));
}

/** The agent's greeting. */
export interface Hello {
  readonly kernelRelease: string;
}

/** Decodes a HELLO. @throws AgentProtocolError */
export function parseHello(frame: Frame): Hello & { readonly version: number } {
  if (frame.type !== AgentFrame.hello || frame.session !== 0 || frame.payload.byteLength < 8) throw unexpected(frame);
  return { version: viewOf(frame.payload).getUint32(0, true), kernelRelease: guestText(frame.payload.subarray(8)) };
}
