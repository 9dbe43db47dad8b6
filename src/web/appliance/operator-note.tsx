import type { ComponentChildren } from "preact";
import { useSession } from "../data/session.ts";
import { CommandLine } from "../parts/empty.tsx";

/** Explains to sessions without the scope `operator` what operators see, and how to get a token. */
export function OperatorNote({ children }: { readonly children: ComponentChildren }) {
  const { account } = useSession();
  return (
    <aside class="appliance-note stack gap-2 muted" aria-label="For operators">
      <p>{children} This needs a token with the scope operator, which is created on the host of the appliance:</p>
      <CommandLine text={`coppice token create --account ${account} --scope '*' --scope operator`} />
    </aside>
  );
}
