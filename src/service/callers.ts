import { getToken } from "../db/tokens.ts";
import { ApiError } from "../domain/errors.ts";
import { IMPORT_TIMEOUT_SECONDS_MAX } from "../domain/image.ts";
import type { Principal, ServiceParts } from "./parts.ts";

/** Limits of the appliance for a caller. */
export interface CallerLimits {
  readonly instanceTimeoutSecondsMax: number;
  /** number of its instances that can run at once */
  readonly instanceCountMax: number;
  readonly importTimeoutSecondsMax: number;
  /** number of its imports that can run at once */
  readonly importCountMax: number;
}

/** A caller, as its token describes it. */
export interface Caller {
  readonly tokenId: string;
  /** end of the token, in `milliseconds` since the epoch */
  readonly expiresAt: number;
  readonly limits: CallerLimits;
}

export interface CallerUseCases {
  /** @throws ApiError `unauthorized` when the token is gone */
  describe(principal: Principal): Caller;
}

export function callerUseCases({ db, limits }: ServiceParts): CallerUseCases {
  return {
    describe({ tokenId }) {
      const token = getToken(db, tokenId);
      if (token === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
      return {
        tokenId,
        expiresAt: token.expiresAt,
        limits: {
          instanceTimeoutSecondsMax: limits.instanceTimeoutSecondsMax,
          instanceCountMax: limits.instanceCountMax,
          importTimeoutSecondsMax: IMPORT_TIMEOUT_SECONDS_MAX,
          importCountMax: limits.importCountMax,
        },
      };
    },
  };
}
