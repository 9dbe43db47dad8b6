import type { Accounts } from "../../../domain/account/accounts.ts";
import { Shares } from "../../../domain/account/shares.ts";
import type { Principal } from "../../../service/parts.ts";
import type { BodyRooms } from "../../body/room.ts";
import { RpcError } from "./errors.ts";

/** The sandbox of a call, and its account. */
interface Called {
  readonly principal: Pick<Principal, "accountId">;
  readonly sandbox: { readonly id: string };
}

/** Streams of one sandbox: a caller with its token leaves room for the other sandboxes of the account. */
const SANDBOX_STREAMS_COUNT_MAX = 256;

/** Counts the streams of calls, and the memory of their messages. */
export class Calls {
  readonly #accounts: Pick<Accounts, "take">;
  readonly #rooms: Pick<BodyRooms, "takeLong">;
  readonly #streams = new Shares({ ownerMax: SANDBOX_STREAMS_COUNT_MAX });

  constructor(accounts: Pick<Accounts, "take">, rooms: Pick<BodyRooms, "takeLong">) {
    this.#accounts = accounts;
    this.#rooms = rooms;
  }

  /** A stream, until disposal. @throws RpcError `resource_exhausted`; ApiError `too_many_requests` */
  open({ principal, sandbox }: Called): Disposable {
    using undo = new DisposableStack();
    const stream = this.#streams.take(sandbox.id);
    if (stream === null) {
      throw new RpcError("resource_exhausted", `the sandbox has ${SANDBOX_STREAMS_COUNT_MAX} open streams already`);
    }
    undo.use(stream);
    undo.use(this.#accounts.take(principal.accountId, "callStreams"));
    return undo.move();
  }

  /** Waits for room for a message of `bytes`, as `BodyRooms.takeLong` does. */
  makeRoom({ principal }: Called, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#rooms.takeLong(principal.accountId, bytes, signal);
  }
}
