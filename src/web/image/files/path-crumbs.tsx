import { Link } from "../../browser/router.ts";
import { GuestText } from "../../parts/guest-text.tsx";
import { type EncodedPath, ROOT, shownName, stepsTo } from "../paths.ts";

/** The path as breadcrumbs. */
export function PathCrumbs(props: { readonly path: EncodedPath; readonly hrefOf: (step: EncodedPath) => string }) {
  const { path, hrefOf } = props;
  const steps = stepsTo(path);
  return (
    <nav class="image-path mono" aria-label="Path">
      <ol class="flex wrap shrink">
        {steps.map((step, index) => (
          <li key={step} class="row shrink muted">
            {step === path ? (
              <span aria-current="page">
                <GuestText text={shownName(step)} hasTitle />
              </span>
            ) : (
              <Link class="inline-row" href={hrefOf(step)} aria-label={step === ROOT ? "Root directory" : undefined}>
                <GuestText text={shownName(step)} hasTitle />
              </Link>
            )}
            {index > 0 && step !== path ? <span aria-hidden="true">/</span> : null}
          </li>
        ))}
      </ol>
    </nav>
  );
}
