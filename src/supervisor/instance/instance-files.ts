import { type Agent, AgentError, type ExecHandle } from "../../vm/agent/agent.ts";
import { WatchSyncs } from "../../vm/agent/files/file-session.ts";
import type { GuestFiles, MoveOptions } from "../../vm/agent/files/guest-files.ts";
import type { Machine } from "../../vm/vmm.ts";
import { fileFailure } from "../machines/guest-errors.ts";
import { explain } from "../machines/machine-errors.ts";
import { isEnding, notRunning } from "./refusals.ts";

export { type GuestFiles, type MoveOptions, WatchSyncs };

/** The files of a running instance, whose failures are explained for callers. */
export class InstanceFiles {
  readonly #files: GuestFiles;
  readonly #command: ExecHandle;
  readonly #machine: Machine;

  /** @param command the command that has the files before it */
  constructor(agent: Agent, command: ExecHandle, machine: Machine) {
    this.#files = agent.files(command);
    this.#command = command;
    this.#machine = machine;
  }

  /**
   * Makes one request.
   * @throws ApiError `not_found`, `invalid_path`, `forbidden` or `conflict` for the path; `too_many_requests`,
   *   `insufficient_storage`, `unavailable`; the reason of the request's signal
   */
  async use<T>(request: (files: GuestFiles) => Promise<T>): Promise<T> {
    try {
      return await request(this.#files);
    } catch (error) {
      throw await this.#explained(error);
    }
  }

  /** The items of a stream. @throws as `use` does */
  async *items<T>(stream: (files: GuestFiles) => AsyncGenerator<T>): AsyncGenerator<T, void, undefined> {
    try {
      yield* stream(this.#files);
    } catch (error) {
      throw await this.#explained(error);
    }
  }

  async #explained(error: unknown): Promise<unknown> {
    if (await isEnding(this.#command, error)) return notRunning();
    return error instanceof AgentError ? fileFailure(error) : await explain(error, this.#machine);
  }
}
