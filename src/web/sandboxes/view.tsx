import "./sandboxes.css";
import { useRoute } from "../browser/router.ts";
import { FormView } from "./form-view.tsx";
import { SandboxList } from "./list.tsx";
import { SandboxPage } from "./page.tsx";

/** Sandboxes, the form of a new one, and one sandbox. */
export function View() {
  const { segments } = useRoute();
  const [, id] = segments;
  if (id === undefined) return <SandboxList />;
  if (id === "new") return <FormView />;
  return <SandboxPage key={id} id={id} />;
}
