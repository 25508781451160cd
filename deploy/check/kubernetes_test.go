package check

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const deploy = ".." // this module lies in the folder that it checks

// typeOf makes an empty object of the kinds that the manifests may hold.
func typeOf(meta metav1.TypeMeta) any {
	switch meta.APIVersion + " " + meta.Kind {
	case "v1 ConfigMap":
		return &corev1.ConfigMap{}
	case "v1 Secret":
		return &corev1.Secret{}
	case "v1 Service":
		return &corev1.Service{}
	case "v1 ServiceAccount":
		return &corev1.ServiceAccount{}
	case "apps/v1 Deployment":
		return &appsv1.Deployment{}
	case "policy/v1 PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return &autoscalingv2.HorizontalPodAutoscaler{}
	case "networking.k8s.io/v1 NetworkPolicy":
		return &networkingv1.NetworkPolicy{}
	}
	return nil
}

// manifests decodes every document under deploy/kubernetes, unknown fields being errors.
func manifests(t *testing.T) []any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deploy, "kubernetes", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v, %v", files, err)
	}
	var all []any
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, decodeAll(t, file, text)...)
	}
	return all
}

func decodeAll(t *testing.T, file string, text []byte) []any {
	t.Helper()
	var all []any
	docs := yamlutil.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	buf := make([]byte, 1<<20)
	for {
		n, err := docs.Read(buf)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(buf[:n], &meta); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object := typeOf(meta)
		if object == nil {
			t.Fatalf("%s: no type for %s %s", file, meta.APIVersion, meta.Kind)
		}
		if err := yaml.UnmarshalStrict(buf[:n], object); err != nil {
			t.Errorf("%s: %s: %v", file, meta.Kind, err)
		}
		all = append(all, object)
	}
}

// find returns the objects of one type.
func find[T any](t *testing.T) []*T {
	t.Helper()
	var found []*T
	for _, object := range manifests(t) {
		if o, ok := object.(*T); ok {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %T among the manifests", *new(T))
	}
	return found
}

func TestManifestsDecodeStrictly(t *testing.T) {
	if n := len(manifests(t)); n < 10 {
		t.Errorf("%d objects, want the ten that the operations guide names", n)
	}
}

func gateway(t *testing.T) (*appsv1.Deployment, corev1.Container) {
	t.Helper()
	d := find[appsv1.Deployment](t)[0]
	return d, d.Spec.Template.Spec.Containers[0]
}

func TestRollingRestartsLoseNothing(t *testing.T) {
	d, c := gateway(t)
	pod := d.Spec.Template.Spec
	before := c.Lifecycle.PreStop.Sleep.Seconds
	drain := drainOf(t)
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < time.Duration(before)*time.Second+drain {
		t.Errorf("the grace period %v is shorter than preStop %d s and drain %v", grace, before, drain)
	}
	if d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Error("a rolling update takes a gateway away before the next one is ready")
	}
	if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("probes ask %s and %s", c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path)
	}
}

// drainOf reads timeouts.drain from the ConfigMap's own configuration.
func drainOf(t *testing.T) time.Duration {
	t.Helper()
	var config struct {
		Timeouts struct{ Drain string }
	}
	text := find[corev1.ConfigMap](t)[0].Data["penstock.yaml"]
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	drain, err := time.ParseDuration(config.Timeouts.Drain)
	if err != nil {
		t.Fatal(err)
	}
	return drain
}

func TestGatewayRunsWithNothingToSpare(t *testing.T) {
	d, c := gateway(t)
	pod := d.Spec.Template.Spec
	if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
		t.Error("the container may be root, write to its image or gain rights")
	}
	if !slices.Contains(c.SecurityContext.Capabilities.Drop, "ALL") || *pod.AutomountServiceAccountToken {
		t.Error("the container keeps capabilities or a token of the Kubernetes API")
	}
	if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].SubPath != "" {
		t.Error("the configuration is mounted as a single file: its changes would not arrive")
	}
}

func TestSelectorsMeetThePods(t *testing.T) {
	d, c := gateway(t)
	pod := labels.Set(d.Spec.Template.Labels)
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	selects := func(name string, selector *metav1.LabelSelector) {
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || !s.Matches(pod) {
			t.Errorf("%s selects %v (%v), which the pods %v do not have", name, selector, err, pod)
		}
	}
	selects("Deployment", d.Spec.Selector)
	selects("PodDisruptionBudget", find[policyv1.PodDisruptionBudget](t)[0].Spec.Selector)
	for _, s := range find[corev1.Service](t) {
		if s.Name == "engines" {
			if s.Spec.ClusterIP != corev1.ClusterIPNone {
				t.Error("the engines' Service is not headless: its name would be one address")
			}
			continue
		}
		selects("Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		for _, p := range s.Spec.Ports {
			if !ports[p.TargetPort.String()] {
				t.Errorf("Service %s: no port %s in the pods", s.Name, p.TargetPort.String())
			}
		}
	}
	for _, p := range find[networkingv1.NetworkPolicy](t) {
		if p.Name == "penstock" {
			selects("NetworkPolicy", &p.Spec.PodSelector)
		}
	}
}

func TestConfigurationNamesTheEnginesServiceAndItsSecrets(t *testing.T) {
	text := find[corev1.ConfigMap](t)[0].Data["penstock.yaml"]
	if !strings.Contains(text, `"http://engines:30000", resolve: dns`) {
		t.Errorf("the configuration does not resolve the engines' Service:\n%s", text)
	}
	for name := range find[corev1.Secret](t)[0].StringData {
		if !strings.Contains(text, "${"+name+"}") {
			t.Errorf("the configuration does not use the secret %s", name)
		}
	}
}
