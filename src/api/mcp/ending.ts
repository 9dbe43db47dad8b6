import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { allows } from "../../domain/scope.ts";
import type { ToolCall } from "./tool.ts";

/**
 * Ends an operation if its caller leaves or cancels before the call is answered. It goes on when the token does not allow to
 * end operations: to leave must not do what asking for it could not.
 */
export function endUnlessAnswered(call: ToolCall, id: OperationId): Disposable & { answered(): void } {
  const { service, principal, signal } = call;
  let isAnswered = !allows(principal.grants, "operations:cancel");
  return {
    answered() {
      isAnswered ||= !signal.aborted;
    },
    [Symbol.dispose]() {
      if (isAnswered || !signal.aborted) return;
      try {
        service.operations.cancel(principal, id);
      } catch (error) {
        // `conflict`: it has just ended by itself.
        if (!(error instanceof ApiError)) throw error;
      }
    },
  };
}
