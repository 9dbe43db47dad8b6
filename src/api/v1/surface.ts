import type { Service } from "../../service/service.ts";

/** What the routes of this surface stand on. */
export interface Surface {
  readonly service: Service;
  /** base of Location headers, with the prefix of the surface and without a trailing slash */
  readonly address: string;
}
