import { Link } from "../browser/router.ts";
import { GuestText } from "../parts/guest-text.tsx";
import { shortId } from "../text/format.ts";

/** A link to an image: its tag, or the end of its id. */
export function ImageLink({ id, tag }: { readonly id: string; readonly tag?: string | undefined }) {
  return (
    <Link href={`/images/${id}`} title={id}>
      {tag === undefined ? <span class="mono">{shortId(id)}</span> : <GuestText text={tag} />}
    </Link>
  );
}
