import "./run.css";
import { useRoute } from "../app/router.ts";
import { FormView } from "./form/form-view.tsx";
import { RunList } from "./list.tsx";
import { RunPage } from "./page.tsx";

/** Operations, the form of a run, and one operation. */
export function View() {
  const { segments } = useRoute();
  const [, id] = segments;
  if (id === undefined) return <RunList />;
  if (id === "new") return <FormView />;
  return <RunPage key={id} id={id} />;
}
