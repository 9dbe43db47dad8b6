import { Type } from "@sinclair/typebox";

/* Rules of fields that several surfaces have. */

/** Any key. TypeBox's pattern for string keys does not match line ends, and would leave such entries unvalidated. */
export const ANY_KEY = Type.String({ pattern: "^[\\s\\S]*$" });

/** Largest user or group id: the number above it means "no change" in system calls. */
export const OWNER_MAX = 0xffff_fffe;

export const HOSTNAME_PATTERN = "^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$";
