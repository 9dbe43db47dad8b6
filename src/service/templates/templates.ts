import type { Principal, ServiceParts } from "../parts.ts";
import { type ResolvedTemplate, resolve } from "./resolve.ts";

/** Named images that sandboxes begin with. */
export interface TemplateUseCases {
  /**
   * The template of a reference: a tag of an image, a name of which there is a tag `name:default` or `name:latest`, or the
   * id of an image, with or without dashes.
   * @throws ApiError `not_found`
   */
  resolve(principal: Principal, reference: string): ResolvedTemplate;
}

export function templateUseCases(parts: ServiceParts): TemplateUseCases {
  return { resolve: (principal, reference) => resolve(parts, principal, reference) };
}
