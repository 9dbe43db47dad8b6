import { type ErrorForm, SPECIFIED_ERRORS } from "../errors.ts";

/** Errors of the drive: file managers ask their users for a name and a password, which is a token. */
export const DAV_ERRORS: ErrorForm = { ...SPECIFIED_ERRORS, challenge: 'Basic realm="coppice", charset="UTF-8"' };
