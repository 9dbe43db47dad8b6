import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { allows } from "../../domain/scope.ts";
import type { ToolCall } from "./tool.ts";

/**
 * Cancels an operation when it is disposed, just before the call is answered, if the caller has left or cancelled by then.
 * The operation continues when the token does not allow cancelling operations or is no longer valid: leaving must not do
 * more than a request could.
 */
export function endIfLeft(call: ToolCall, id: OperationId): Disposable {
  const { service, principal, signal } = call;
  return {
    [Symbol.dispose]() {
      const isRevoked = signal.reason instanceof ApiError;
      if (!signal.aborted || isRevoked || !allows(principal.grants, "operations:cancel")) return;
      try {
        service.operations.cancel(principal, id);
      } catch (error) {
        // `conflict`: it has just ended by itself.
        if (!(error instanceof ApiError)) throw error;
      }
    },
  };
}
