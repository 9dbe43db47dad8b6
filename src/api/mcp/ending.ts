import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { allows } from "../../domain/scope.ts";
import type { ToolCall } from "./tool.ts";

/**
 * Ends an operation at its disposal, just before the call is answered, if the caller has left or cancelled until then. The
 * operation goes on when the token does not allow to end operations, or is not valid any more: to leave must not do what
 * asking for it could not.
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
